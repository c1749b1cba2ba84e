// Descriptors of processes.
#ifndef SERVER_IPC_PIDFD_H_
#define SERVER_IPC_PIDFD_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {

// Of this process.
absl::StatusOr<base::UniqueFd> OpenSelfPidfd();

// In this process's pid namespace: -1 once it was reaped, 0 if it is not
// visible there. InvalidArgument: `fd` is no pidfd.
absl::StatusOr<pid_t> PidOf(int fd);

// OK if `fd` is a pidfd of a living process that is `pid`. When either is not
// visible in this process's pid namespace (0), they cannot be compared and it
// is OK too: whoever sends another's pidfd changes only his own lease.
// InvalidArgument otherwise.
absl::Status CheckPidfd(int fd, pid_t pid);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_PIDFD_H_
