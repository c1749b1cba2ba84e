// A Unix socket at a path, and the right to that path: a lock on
// PATH.lock that dies with its process. A socket left by a dead process is
// replaced; one of a living process is refused.
//
// Threading: thread-compatible.
#ifndef SERVER_IPC_SOCKET_PATH_H_
#define SERVER_IPC_SOCKET_PATH_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {

class SocketPath {
 public:
  // `type` is SOCK_SEQPACKET or SOCK_STREAM; the socket is non-blocking.
  // Creates the parent directory (0755) if it is missing. InvalidArgument: the
  // path is empty or too long. FailedPrecondition: a living process has it.
  // AlreadyExists: something else than a socket is there.
  static absl::StatusOr<SocketPath> Listen(const std::string& path, int type,
                                           mode_t mode);
  // The same, but until Open whoever connects is refused (ECONNREFUSED).
  static absl::StatusOr<SocketPath> Claim(const std::string& path, int type,
                                          mode_t mode);

  SocketPath(SocketPath&&) = default;
  SocketPath& operator=(SocketPath&&) = delete;
  // Removes the socket and the lock file.
  ~SocketPath();

  // Listens from now on. Idempotent.
  absl::Status Open();

  int fd() const { return listener_.get(); }

 private:
  SocketPath(std::string path, base::UniqueFd lock, base::UniqueFd listener);

  std::string path_;
  base::UniqueFd lock_;  // empty once moved from
  base::UniqueFd listener_;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_SOCKET_PATH_H_
