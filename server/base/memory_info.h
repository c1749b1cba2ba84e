// How much memory this process may still take.
#ifndef SERVER_BASE_MEMORY_INFO_H_
#define SERVER_BASE_MEMORY_INFO_H_

#include <cstdint>
#include <string>

namespace ballast::base {

// The least of what the system has available and what the limits of this
// process's cgroup (v2) and its ancestors leave; page cache that can be
// dropped counts as available. UINT64_MAX if nothing says. Shared memory must
// be checked against it: the kernel does not refuse to reserve more, it kills.
uint64_t AvailableMemoryBytes(const std::string& proc = "/proc",
                              const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace ballast::base

#endif  // SERVER_BASE_MEMORY_INFO_H_
