// Packets with file descriptors over Unix sockets (SCM_RIGHTS).
//
// Threading: thread-safe per call, as the socket is.
#ifndef SERVER_IPC_FD_PASSING_H_
#define SERVER_IPC_FD_PASSING_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {

// No message of ours carries more; a sender of more loses them (the kernel
// closes what does not fit, `is_truncated` says so).
inline constexpr int kMaxPassedFds = 4;

struct Packet {
  size_t size = 0;            // bytes written to the caller's buffer
  bool is_end = false;        // the peer closed the socket
  bool is_truncated = false;  // bytes or fds were lost: refuse the packet
  bool lacks_fds = false;     // lost: this process may not have so many open
  std::vector<base::UniqueFd> fds;  // CLOEXEC
};

enum class IoResult { kDone, kWouldBlock };

// Sends all of `bytes` (at least one) and `fds` as one packet without
// blocking; raises no SIGPIPE. Unavailable if the peer is gone.
absl::StatusOr<IoResult> SendPacket(int socket,
                                    std::span<const std::byte> bytes,
                                    std::span<const int> fds);

// Receives one packet without blocking. `packet` is valid if kDone.
absl::StatusOr<IoResult> ReceivePacket(int socket, std::span<std::byte> buffer,
                                       Packet* packet);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_FD_PASSING_H_
