// Where the limits of this process's cgroup (v2) stand.
//
// Threading: reads files, keeps nothing.
#ifndef SERVER_BASE_CGROUP_H_
#define SERVER_BASE_CGROUP_H_

#include <string>
#include <vector>

namespace ballast::base {

// The directories of the process's cgroup and of all above it, the root last:
// each may limit it. `proc` and `cgroup` are where those file systems are.
std::vector<std::string> CgroupDirectories(const std::string& proc,
                                           const std::string& cgroup);

}  // namespace ballast::base

#endif  // SERVER_BASE_CGROUP_H_
