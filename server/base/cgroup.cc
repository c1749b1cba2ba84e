#include "server/base/cgroup.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast::base {
namespace {

// The "0::/path" line of cgroup v2.
std::string CgroupPath(const std::string& proc) {
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::vector<std::string> CgroupDirectories(const std::string& proc,
                                           const std::string& cgroup) {
  std::vector<std::string> directories;
  std::string path = CgroupPath(proc);
  while (true) {
    directories.push_back(absl::StrCat(cgroup, path));
    if (path.size() <= 1) return directories;
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
}

}  // namespace ballast::base
