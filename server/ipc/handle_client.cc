#include "server/ipc/handle_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/pidfd.h"

namespace ballast::ipc {
namespace {

absl::Time Now() { return base::MonotonicClock().Now(); }

absl::Status Gone() {
  return absl::UnavailableError("the daemon closed the connection");
}

// Waits until the socket is ready for `events`, at most until `deadline`.
absl::Status WaitFor(int socket, short events, absl::Time deadline) {
  while (true) {
    const absl::Duration left =
        std::clamp(deadline - Now(), absl::ZeroDuration(), absl::Minutes(1));
    pollfd poll_fd{socket, events, 0};
    const int timeout = static_cast<int>(
        absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    const int ready = poll(&poll_fd, 1, timeout);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return base::ErrnoStatus(errno, "poll");
    if (Now() >= deadline) {
      return absl::DeadlineExceededError("no answer from the daemon in time");
    }
  }
}

// One packet from the daemon with at least a header.
absl::Status ReceiveBy(int socket, std::span<std::byte> buffer,
                       absl::Time deadline, Packet* packet) {
  while (true) {
    ASSIGN_OR_RETURN(const IoResult result,
                     ReceivePacket(socket, buffer, packet));
    if (result == IoResult::kDone) break;
    RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
  }
  if (packet->is_end) return Gone();
  if (packet->is_truncated || packet->size < sizeof(proto::HandleHeader)) {
    return absl::InternalError("the daemon sent a malformed message");
  }
  return absl::OkStatus();
}

template <typename Message>
absl::StatusOr<Message> As(std::span<const std::byte> bytes,
                           proto::HandleMessageKind kind) {
  Message message;
  if (bytes.size() >= sizeof(message)) {
    std::memcpy(&message, bytes.data(), sizeof(message));
    if (message.header.magic == proto::kHandleMagic &&
        message.header.kind == kind) {
      return message;
    }
  }
  return absl::InternalError(
      "the daemon answered in another protocol; is this a ballastd socket?");
}

proto::HandleMessageKind KindOf(std::span<const std::byte> bytes) {
  proto::HandleHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header.kind;
}

absl::Status StatusOfRefusal(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(
      const auto refusal,
      As<proto::RefusalMessage>(bytes, proto::HandleMessageKind::kRefusal));
  const std::span<const std::byte> text = bytes.subspan(sizeof(refusal));
  return absl::Status(
      static_cast<absl::StatusCode>(refusal.code),
      absl::string_view(reinterpret_cast<const char*>(text.data()),
                        text.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandleClient>> HandleClient::Connect(
    const std::string& path, std::string_view token, absl::Duration timeout) {
  const absl::Time deadline = Now() + timeout;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path ", path, " has ", path.size(),
                     " bytes; use 1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  base::UniqueFd socket(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::ErrnoStatus(errno, "socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) < 0) {
    const int error = errno;
    const absl::Status status =
        base::ErrnoStatus(error, absl::StrCat("connect to ", path));
    // EAGAIN: its queue of connections is full.
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
      return absl::UnavailableError(status.message());
    }
    return status;
  }
  std::unique_ptr<HandleClient> client(new HandleClient(std::move(socket)));
  RETURN_IF_ERROR(client->SendHello(token, deadline));
  RETURN_IF_ERROR(client->ReceiveWelcome(deadline));
  return client;
}

absl::Status HandleClient::SendHello(std::string_view token,
                                     absl::Time deadline) {
  if (token.size() > proto::kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("token has ", token.size(), " bytes, at most ",
                     proto::kMaxTokenBytes, " are allowed"));
  }
  ASSIGN_OR_RETURN(const base::UniqueFd pidfd, OpenSelfPidfd());
  proto::HelloMessage hello{};
  hello.header = {proto::kHandleMagic, proto::HandleMessageKind::kHello};
  hello.version = proto::kHandleVersion;
  hello.token_bytes = static_cast<uint32_t>(token.size());
  std::vector<std::byte> bytes(sizeof(hello) + token.size());
  std::memcpy(bytes.data(), &hello, sizeof(hello));
  std::memcpy(bytes.data() + sizeof(hello), token.data(), token.size());
  const int fd = pidfd.get();
  while (true) {
    const auto result = SendPacket(socket_.get(), bytes, std::span(&fd, 1));
    // A daemon that refuses before it reads has left its reason.
    if (absl::IsUnavailable(result.status())) return absl::OkStatus();
    RETURN_IF_ERROR(result.status());
    if (*result == IoResult::kDone) return absl::OkStatus();
    RETURN_IF_ERROR(WaitFor(socket_.get(), POLLOUT, deadline));
  }
}

absl::Status HandleClient::ReceiveWelcome(absl::Time deadline) {
  std::array<std::byte, sizeof(proto::RefusalMessage) + proto::kMaxTextBytes>
      buffer;
  Packet packet;
  RETURN_IF_ERROR(ReceiveBy(socket_.get(), buffer, deadline, &packet));
  const auto bytes = std::span<const std::byte>(buffer).first(packet.size);
  if (KindOf(bytes) == proto::HandleMessageKind::kRefusal) {
    const absl::Status refusal = StatusOfRefusal(bytes);
    return refusal.ok() ? absl::InternalError("refused without a reason")
                        : refusal;
  }
  ASSIGN_OR_RETURN(
      const auto welcome,
      As<proto::WelcomeMessage>(bytes, proto::HandleMessageKind::kWelcome));
  if (packet.fds.size() != 1) {
    return absl::InternalError("the daemon sent no control descriptor");
  }
  std::memcpy(key_.bytes.data(), welcome.key, key_.bytes.size());
  control_fd_ = std::move(packet.fds[0]);
  return absl::OkStatus();
}

absl::StatusOr<HandleClient::ReceivedSegment> HandleClient::ReceiveSegment(
    absl::Duration timeout) {
  std::array<std::byte, sizeof(proto::SegmentMessage)> buffer;
  Packet packet;
  RETURN_IF_ERROR(ReceiveBy(socket_.get(), buffer, Now() + timeout, &packet));
  ASSIGN_OR_RETURN(const auto message, As<proto::SegmentMessage>(
                                           std::span(buffer).first(packet.size),
                                           proto::HandleMessageKind::kSegment));
  if (packet.fds.size() != 1) {
    return absl::InternalError("the daemon sent a segment without memory");
  }
  return ReceivedSegment{message.segment, message.size_bytes,
                         std::move(packet.fds[0])};
}

absl::Status HandleClient::AwaitControl(absl::Duration timeout) {
  RETURN_IF_ERROR(ReceiveWelcome(Now() + timeout));
  // One of each life that came and went meanwhile.
  while (ReceiveWelcome(Now()).ok()) {
  }
  return absl::OkStatus();
}

absl::Status HandleClient::RingDoorbell() {
  const std::byte bell{proto::kDoorbell};
  // kWouldBlock: the daemon has doorbells to read, and will look then.
  return SendPacket(socket_.get(), std::span(&bell, 1), {}).status();
}

bool HandleClient::IsOpen() const {
  pollfd poll_fd{socket_.get(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, 0) == 0;
}

}  // namespace ballast::ipc
