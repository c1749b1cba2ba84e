// Which processors this process may use, how much of them, and where they are:
// what a pool of threads is sized and placed by.
//
// Threading: pure but for the files of `roots` and InterleaveMemory.
#ifndef SERVER_BASE_CPUS_H_
#define SERVER_BASE_CPUS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::base {

struct CpuRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string system = "/sys/devices/system";
};

// "0-3,8": ascending, each once. InvalidArgument says what is wrong.
absl::StatusOr<std::vector<int>> ParseCpuList(std::string_view text);
std::string CpuListText(const std::vector<int>& cpus);

// Those that the scheduler lets this thread run on, ascending.
std::vector<int> UsableCpus();

// The bandwidth limit of the process's cgroup (v2) and those above it, rounded
// up to whole processors; 0: none.
int CpuQuota(const CpuRoots& roots = {});

// By processor; all 0 where the kernel tells of no nodes.
std::vector<int> NumaNodesOf(const std::vector<int>& cpus,
                             const CpuRoots& roots = {});

// The same processors, neighbours on different NUMA nodes as far as possible:
// the first n of them share the load of all memories evenly.
std::vector<int> SpreadOverNodes(const std::vector<int>& cpus,
                                 const std::vector<int>& nodes);

// Memory that this thread, and threads it makes from now on, are the first to
// touch comes from these nodes in turn (set_mempolicy(2)): every thread finds
// as much of it near as any other. Unimplemented where the kernel cannot.
absl::Status InterleaveMemory(const std::vector<int>& nodes);

}  // namespace ballast::base

#endif  // SERVER_BASE_CPUS_H_
