#include "server/ipc/handle_connection.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/welcome.h"

namespace ballast::ipc {
namespace {

constexpr size_t kMaxDoorbellBytes = 16;  // one is sent; more is a breach

}  // namespace

HandleConnection::HandleConnection(base::UniqueFd socket, base::UniqueFd pidfd,
                                   const PeerIdentity& peer,
                                   const ConnectionKey& key,
                                   base::EventLoop* loop)
    : socket_(std::move(socket)),
      pidfd_(std::move(pidfd)),
      peer_(peer),
      key_(key),
      loop_(loop) {}

HandleConnection::~HandleConnection() { Close(); }

void HandleConnection::Start(WorkerLinkObserver* observer) {
  observer_ = observer;
  absl::Status status =
      loop_->WatchFd(socket_.get(), SocketEvents(),
                     [this](uint32_t events) { OnSocket(events); });
  if (status.ok()) {
    // Readable once the process has exited, whoever else holds the socket.
    status =
        loop_->WatchFd(pidfd_.get(), EPOLLIN, [this](uint32_t) { OnExit(); });
  }
  if (status.ok()) return;
  // An observer does not expect the end inside Start.
  failure_timer_ = loop_->PostAfter(absl::ZeroDuration(), [this, status] {
    failure_timer_ = 0;
    Lose(status);
  });
}

void HandleConnection::Close() {
  if (failure_timer_ != 0) loop_->Cancel(std::exchange(failure_timer_, 0));
  if (socket_) loop_->UnwatchFd(socket_.get());
  if (pidfd_) loop_->UnwatchFd(pidfd_.get());
  socket_.Reset();
  pidfd_.Reset();
  queue_.clear();
  observer_ = nullptr;
}

std::vector<int> HandleConnection::fds() const {
  if (!socket_) return {};
  return {socket_.get(), pidfd_.get()};
}

absl::StatusOr<base::UniqueFd> HandleConnection::SendControl() {
  if (!socket_) {
    return absl::UnavailableError("the worker's connection has ended");
  }
  return SendWelcome(socket_.get(), key_);
}

void HandleConnection::Lose(const absl::Status& reason) {
  WorkerLinkObserver* const observer = observer_;
  Close();
  // Last: the observer may destroy this.
  if (observer != nullptr) observer->OnLost(this, reason);
}

void HandleConnection::OnSocket(uint32_t epoll_events) {
  bool has_rung = false;
  absl::Status status = DrainDoorbells(&has_rung);
  if (status.ok() && (epoll_events & EPOLLOUT)) status = FlushSegments();
  if (!status.ok()) {
    Lose(status);
    return;
  }
  // Last: the observer may destroy this.
  if (has_rung) observer_->OnDoorbell(this);
}

void HandleConnection::OnExit() {
  // What it pushed before it died counts: one look, then the end, also if a
  // forked child goes on ringing.
  if (!std::exchange(has_seen_exit_, true)) {
    bool has_rung = false;
    if (DrainDoorbells(&has_rung).ok() && has_rung) {
      observer_->OnDoorbell(this);
      return;
    }
  }
  Lose(absl::UnavailableError("the worker process exited"));
}

absl::Status HandleConnection::DrainDoorbells(bool* has_rung) {
  for (int i = 0; i < kMaxDoorbellsPerTurn; ++i) {
    std::array<std::byte, kMaxDoorbellBytes> bytes;
    Packet packet;
    ASSIGN_OR_RETURN(const IoResult result,
                     ReceivePacket(socket_.get(), bytes, &packet));
    if (result == IoResult::kWouldBlock) return absl::OkStatus();
    if (packet.is_end) {
      // First the doorbells; the end is still there on the next turn.
      if (*has_rung) return absl::OkStatus();
      return absl::UnavailableError("the worker closed its connection");
    }
    if (packet.size != 1 || bytes[0] != std::byte{proto::kDoorbell} ||
        packet.is_truncated || !packet.fds.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the worker sent ", packet.size, " bytes and ", packet.fds.size(),
          " descriptors instead of a doorbell"));
    }
    *has_rung = true;
  }
  return absl::OkStatus();
}

absl::Status HandleConnection::SendSegment(proto::SegmentKind kind, int fd,
                                           uint64_t size_bytes) {
  if (!socket_) {
    return absl::FailedPreconditionError("the worker's connection has ended");
  }
  if (queue_.size() >= kMaxQueuedSegments) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the worker does not read the segments that it was sent (",
                     queue_.size(), " wait)"));
  }
  base::UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return base::ErrnoStatus(errno, "duplicate segment fd");
  QueuedSegment segment{};
  segment.message.header = {proto::kHandleMagic,
                            proto::HandleMessageKind::kSegment};
  segment.message.segment = kind;
  segment.message.size_bytes = size_bytes;
  segment.fd = std::move(copy);
  queue_.push_back(std::move(segment));
  return FlushSegments();
}

absl::Status HandleConnection::FlushSegments() {
  while (!queue_.empty()) {
    const QueuedSegment& segment = queue_.front();
    const int fd = segment.fd.get();
    ASSIGN_OR_RETURN(
        const IoResult result,
        SendPacket(socket_.get(), std::as_bytes(std::span(&segment.message, 1)),
                   std::span(&fd, 1)));
    if (result == IoResult::kWouldBlock) break;
    queue_.pop_front();
  }
  if (observer_ == nullptr) return absl::OkStatus();  // Start watches later
  return loop_->ModifyFd(socket_.get(), SocketEvents());
}

uint32_t HandleConnection::SocketEvents() const {
  return queue_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
}

}  // namespace ballast::ipc
