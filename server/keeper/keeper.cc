#include "server/keeper/keeper.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"

namespace ballast::keeper {
namespace {

using ipc::IoResult;
using proto::KeeperMessageKind;

constexpr int kMaxMessagesPerTurn = 64;
// Too many descriptors of this user are under way: the daemon takes them soon.
constexpr absl::Duration kCrowdedPause = absl::Milliseconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(Options options,
                                                       base::EventLoop* loop) {
  ASSIGN_OR_RETURN(
      ipc::SocketPath path,
      ipc::SocketPath::Listen(options.path, SOCK_SEQPACKET, /*mode=*/0600));
  std::unique_ptr<Keeper> keeper(
      new Keeper(std::move(options), std::move(path), loop));
  RETURN_IF_ERROR(keeper->acceptor_.Start(keeper->path_.fd()));
  keeper->ArmLinger();
  return keeper;
}

Keeper::Keeper(Options options, ipc::SocketPath path, base::EventLoop* loop)
    : options_(std::move(options)),
      path_(std::move(path)),
      loop_(loop),
      acceptor_(loop,
                [this](base::UniqueFd socket) { Admit(std::move(socket)); }) {}

Keeper::~Keeper() {
  if (daemon_) loop_->UnwatchFd(daemon_.get());
  loop_->Cancel(linger_);
  loop_->Cancel(crowded_);
}

void Keeper::ArmLinger() {
  if (options_.linger == absl::InfiniteDuration()) return;
  linger_ = loop_->PostAfter(options_.linger, [this] {
    linger_ = 0;
    options_.on_idle();
  });
}

// The daemon's end may not have been read yet.
bool Keeper::IsDaemonGone() const {
  pollfd poll_fd{daemon_.get(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, 0) > 0;
}

void Keeper::Admit(base::UniqueFd socket) {
  const auto refuse = [&socket](const absl::Status& why) {
    // Who does not take it in time does without.
    (void)ipc::SendPacket(socket.get(), ipc::RefusalBytes("", why), {});
  };
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ||
      (peer.uid != geteuid() && peer.uid != 0)) {
    return refuse(absl::PermissionDeniedError(
        absl::StrCat("uid ", peer.uid, " is not this keeper's, ", geteuid())));
  }
  if (daemon_ && !IsDaemonGone()) {
    return refuse(absl::FailedPreconditionError(
        absl::StrCat("a daemon (pid ", daemon_pid_,
                     ") is connected to this keeper; stop it first")));
  }
  if (daemon_) {
    // What it sent before its end counts; nobody is left to be answered.
    while (ReadSome().ok()) replies_.clear();
    DropDaemon();
  }
  if (const absl::Status watched = loop_->WatchFd(
          socket.get(), EPOLLIN, [this](uint32_t events) { OnDaemon(events); });
      !watched.ok()) {
    return refuse(watched);
  }
  loop_->Cancel(std::exchange(linger_, 0));
  daemon_ = std::move(socket);
  daemon_pid_ = peer.pid;
}

void Keeper::DropDaemon() {
  loop_->UnwatchFd(daemon_.get());
  daemon_.Reset();
  listing_.reset();
  replies_.clear();
  loop_->Cancel(std::exchange(crowded_, 0));
  if (options_.linger == absl::InfiniteDuration()) return;
  if (!items_.empty()) return ArmLinger();
  options_.on_idle();
}

void Keeper::OnDaemon(uint32_t events) {
  absl::Status status = absl::OkStatus();
  if ((events & EPOLLOUT) != 0) status = SendReplies();
  if (status.ok()) status = ReadSome();
  if (status.ok() && (events & EPOLLOUT) != 0) status = SendList();
  if (!status.ok()) End(status);
}

void Keeper::End(const absl::Status& why) {
  (void)ipc::SendPacket(daemon_.get(), ipc::RefusalBytes("", why), {});
  DropDaemon();
}

absl::Status Keeper::ReadSome() {
  for (int i = 0; i < kMaxMessagesPerTurn && replies_.empty(); ++i) {
    std::array<std::byte, ipc::kMaxKeeperMessageBytes> bytes;
    ipc::Packet packet;
    ASSIGN_OR_RETURN(const IoResult result,
                     ipc::ReceivePacket(daemon_.get(), bytes, &packet));
    if (result == IoResult::kWouldBlock) return absl::OkStatus();
    if (packet.is_end) return absl::UnavailableError("the daemon has gone");
    const size_t size = packet.size;
    ASSIGN_OR_RETURN(ipc::KeeperMessage message,
                     ipc::ParseKeeperMessage(std::span(bytes).first(size),
                                             std::move(packet)));
    RETURN_IF_ERROR(Take(std::move(message)));
  }
  return absl::OkStatus();
}

absl::Status Keeper::Take(ipc::KeeperMessage message) {
  switch (message.kind) {
    case KeeperMessageKind::kList:
      StartList();
      return SendList();
    case KeeperMessageKind::kReset:
      return Reset(message.code == proto::kResetMarks);
    case KeeperMessageKind::kPut:
      return Put(std::move(message));
    case KeeperMessageKind::kRemove:
      Remove(message.name);
      return absl::OkStatus();
    case KeeperMessageKind::kSync:
      Sweep();
      return Reply(ipc::ToBytes(KeeperMessageKind::kSynced));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("message kind ", static_cast<uint32_t>(message.kind),
                       " is not for a keeper"));
  }
}

absl::Status Keeper::Reset(bool marks) {
  if (!marks) {
    items_.clear();
    marked_.clear();
    num_fds_ = 0;
    return absl::OkStatus();
  }
  for (const auto& [name, item] : items_) marked_.insert(name);
  return Reply(ipc::ToBytes(KeeperMessageKind::kMarked));
}

void Keeper::Sweep() {
  while (!marked_.empty()) Remove(std::string(*marked_.begin()));
}

absl::Status Keeper::Put(ipc::KeeperMessage message) {
  if (!message.refusal.ok()) {
    return Reply(ipc::RefusalBytes(message.name, message.refusal));
  }
  marked_.erase(message.name);
  const auto old = items_.find(message.name);
  const int less =
      old == items_.end() ? 0 : static_cast<int>(old->second.fds.size());
  const int more = static_cast<int>(message.fds.size()) - less;
  if (num_fds_ + more > options_.max_fds) {
    const absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat("the keeper holds ", num_fds_, " descriptors, of ",
                     options_.max_fds, " that it may"));
    return Reply(ipc::RefusalBytes(message.name, full));
  }
  num_fds_ += more;
  items_[message.name] = {message.name, std::move(message.note),
                          std::move(message.fds)};
  return absl::OkStatus();
}

void Keeper::Remove(const std::string& name) {
  const auto it = items_.find(name);
  if (it == items_.end()) return;
  marked_.erase(name);
  num_fds_ -= static_cast<int>(it->second.fds.size());
  items_.erase(it);
}

void Keeper::StartList() {
  listing_.emplace();
  for (const auto& [name, item] : items_) listing_->push_back(name);
}

// That the daemon has gone shows once all that it sent has been read.
absl::Status Keeper::Reply(std::vector<std::byte> bytes) {
  replies_.push_back(std::move(bytes));
  const absl::Status sent = SendReplies();
  if (!absl::IsUnavailable(sent)) return sent;
  replies_.clear();
  return absl::OkStatus();
}

absl::Status Keeper::SendReplies() {
  while (!replies_.empty()) {
    ASSIGN_OR_RETURN(const IoResult result,
                     ipc::SendPacket(daemon_.get(), replies_.front(), {}));
    if (result == IoResult::kWouldBlock) {
      return loop_->ModifyFd(daemon_.get(), EPOLLOUT);
    }
    replies_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status Keeper::SendList() {
  if (!replies_.empty()) return absl::OkStatus();
  if (!listing_.has_value()) {
    return loop_->ModifyFd(daemon_.get(), EPOLLIN);
  }
  for (;;) {
    std::vector<std::byte> bytes = ipc::ToBytes(KeeperMessageKind::kListEnd, "",
                                                "", proto::kKeeperKnowsSync);
    std::vector<int> fds;
    if (!listing_->empty()) {
      const auto it = items_.find(listing_->front());
      if (it == items_.end()) {  // removed meanwhile
        listing_->pop_front();
        continue;
      }
      const base::Kept& item = it->second;
      bytes = ipc::ToBytes(KeeperMessageKind::kItem, item.name, item.note);
      for (const base::UniqueFd& fd : item.fds) fds.push_back(fd.get());
    }
    const auto sent = ipc::SendPacket(daemon_.get(), bytes, fds);
    if (absl::IsResourceExhausted(sent.status())) {
      SendListLater();
      return loop_->ModifyFd(daemon_.get(), EPOLLIN);
    }
    RETURN_IF_ERROR(sent.status());
    if (*sent == IoResult::kWouldBlock) {
      return loop_->ModifyFd(daemon_.get(), EPOLLIN | EPOLLOUT);
    }
    if (listing_->empty()) break;
    listing_->pop_front();
  }
  listing_.reset();
  return loop_->ModifyFd(daemon_.get(), EPOLLIN);
}

void Keeper::SendListLater() {
  if (crowded_ != 0) return;
  crowded_ = loop_->PostAfter(kCrowdedPause, [this] {
    crowded_ = 0;
    if (const absl::Status status = SendList(); !status.ok()) End(status);
  });
}

}  // namespace ballast::keeper
