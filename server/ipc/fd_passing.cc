#include "server/ipc/fd_passing.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"

namespace ballast::ipc {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(kMaxPassedFds * sizeof(int));

// Takes ownership of every fd that the kernel installed, wanted or not.
void TakeFds(msghdr* message, Packet* packet) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet->fds.emplace_back(fd);
    }
  }
}

}  // namespace

absl::StatusOr<IoResult> SendPacket(int socket,
                                    std::span<const std::byte> bytes,
                                    std::span<const int> fds) {
  if (bytes.empty() || fds.size() > kMaxPassedFds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packet of ", bytes.size(), " bytes and ", fds.size(), " descriptors"));
  }
  iovec io{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return IoResult::kDone;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return IoResult::kWouldBlock;
  const int error = errno;
  const absl::Status status = base::ErrnoStatus(error, "send");
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) {
    return absl::UnavailableError(status.message());
  }
  // Too many descriptors of this user are under way (unix(7)).
  if (error == ETOOMANYREFS) {
    return absl::ResourceExhaustedError(status.message());
  }
  return status;
}

absl::StatusOr<IoResult> ReceivePacket(int socket, std::span<std::byte> buffer,
                                       Packet* packet) {
  *packet = Packet();
  iovec io{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[kControlBytes];
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  bool is_reset = false;
  do {
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // The peer closed with packets of ours unread. The error comes once, before
    // what it had sent: a refusal, perhaps.
  } while (size < 0 && (errno == EINTR || (errno == ECONNRESET &&
                                           !std::exchange(is_reset, true))));
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return IoResult::kWouldBlock;
    return base::ErrnoStatus(errno, "receive");
  }
  TakeFds(&message, packet);
  packet->size = static_cast<size_t>(size);
  // Also an empty packet: nobody has a use for one.
  packet->is_end = size == 0;
  packet->is_truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  // Our buffer had room for more: the kernel could not open them here.
  packet->lacks_fds = (message.msg_flags & MSG_CTRUNC) != 0 &&
                      packet->fds.size() < kMaxPassedFds;
  return IoResult::kDone;
}

}  // namespace ballast::ipc
