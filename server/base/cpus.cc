#include "server/base/cpus.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/base/cgroup.h"
#include "server/base/errno_status.h"
#include "server/base/names.h"

namespace ballast::base {
namespace {

constexpr int kMaxCpu = CPU_SETSIZE - 1;
constexpr int kMaxNode = 1023;

// Processors of one cgroup's "max 100000" or "150000 100000"; 0: no limit.
double QuotaOf(const std::string& directory) {
  std::ifstream file(directory + "/cpu.max");
  double quota, period;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseCpuList(std::string_view text) {
  std::set<int> cpus;
  const std::vector<std::string> ranges =
      absl::StrSplit(std::string(text), ',');
  for (const std::string& range : ranges) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first, last;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first ||
        last > kMaxCpu) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(range), " is not a processor or a range of them ",
                       "like 0-3, up to ", kMaxCpu));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::string CpuListText(const std::vector<int>& cpus) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    ranges.push_back(last == i ? absl::StrCat(cpus[i])
                               : absl::StrCat(cpus[i], "-", cpus[last]));
    i = last + 1;
  }
  return absl::StrJoin(ranges, ",");
}

std::vector<int> UsableCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu <= kMaxCpu; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

int CpuQuota(const CpuRoots& roots) {
  double quota = 0;
  for (const std::string& directory :
       CgroupDirectories(roots.proc, roots.cgroup)) {
    const double here = QuotaOf(directory);
    if (here > 0 && (quota == 0 || here < quota)) quota = here;
  }
  return static_cast<int>(std::ceil(quota));
}

std::vector<int> NumaNodesOf(const std::vector<int>& cpus,
                             const CpuRoots& roots) {
  const auto list = [&](const std::string& name) {
    std::ifstream file(absl::StrCat(roots.system, "/node/", name));
    std::string text;
    std::getline(file, text);
    return ParseCpuList(text).value_or(std::vector<int>());
  };
  std::map<int, int> node_of;
  for (const int node : list("online")) {
    for (const int cpu : list(absl::StrCat("node", node, "/cpulist"))) {
      node_of[cpu] = node;
    }
  }
  std::vector<int> nodes;
  for (const int cpu : cpus) nodes.push_back(node_of[cpu]);
  return nodes;
}

std::vector<int> SpreadOverNodes(const std::vector<int>& cpus,
                                 const std::vector<int>& nodes) {
  std::map<int, std::vector<int>> by_node;
  for (size_t i = 0; i < cpus.size(); ++i) by_node[nodes[i]].push_back(cpus[i]);
  std::vector<int> spread;
  for (size_t turn = 0; spread.size() < cpus.size(); ++turn) {
    for (const auto& [node, of_node] : by_node) {
      if (turn < of_node.size()) spread.push_back(of_node[turn]);
    }
  }
  return spread;
}

absl::Status InterleaveMemory(const std::vector<int>& nodes) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[(kMaxNode + 1) / kBits] = {};
  for (const int node : nodes) {
    if (node < 0 || node > kMaxNode) {
      return absl::InvalidArgumentError(absl::StrCat("NUMA node ", node));
    }
    mask[node / kBits] |= 1ul << (node % kBits);
  }
  if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, kMaxNode + 2) == 0) {
    return absl::OkStatus();
  }
  if (errno == ENOSYS) {
    return absl::UnimplementedError("the kernel has no memory policies");
  }
  return ErrnoStatus(errno, "set_mempolicy");
}

}  // namespace ballast::base
