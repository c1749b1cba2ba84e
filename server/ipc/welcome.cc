#include "server/ipc/welcome.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "proto/handle_socket.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"

namespace ballast::ipc {

absl::StatusOr<base::UniqueFd> SendWelcome(int socket,
                                           const ConnectionKey& key) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) <
      0) {
    return base::ErrnoStatus(errno, "socketpair");
  }
  base::UniqueFd here(ends[0]);
  const base::UniqueFd there(ends[1]);
  proto::WelcomeMessage welcome{};
  welcome.header = {proto::kHandleMagic, proto::HandleMessageKind::kWelcome};
  welcome.version = proto::kHandleVersion;
  std::memcpy(welcome.key, key.bytes.data(), key.bytes.size());
  const int fd = there.get();
  ASSIGN_OR_RETURN(const IoResult result,
                   SendPacket(socket, std::as_bytes(std::span(&welcome, 1)),
                              std::span(&fd, 1)));
  if (result == IoResult::kDone) return here;
  return absl::UnavailableError("the worker does not read what it was sent");
}

}  // namespace ballast::ipc
