#include "server/ipc/keeper_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/keeper_socket.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/keeper_message.h"

namespace ballast::ipc {
namespace {

using proto::KeeperMessageKind;

constexpr absl::Duration kStartPause = absl::Milliseconds(20);
constexpr absl::Duration kAnswerLimit = absl::Seconds(1);
// Between two connections: one that takes nobody is not asked without end.
constexpr absl::Duration kRetryPause = absl::Seconds(1);
// Too many descriptors of this user are under way: the keeper takes them soon.
constexpr absl::Duration kCrowdedPause = absl::Milliseconds(10);
// Until what a keeper has no room for is offered again.
constexpr absl::Duration kOfferPause = absl::Seconds(1);

absl::Time Now() { return base::MonotonicClock().Now(); }

absl::StatusOr<std::vector<base::UniqueFd>> CopiesOf(std::span<const int> fds) {
  std::vector<base::UniqueFd> copies;
  for (const int fd : fds) {
    copies.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copies.back()) {
      return base::ErrnoStatus(errno, "copy a descriptor for the keeper");
    }
  }
  return copies;
}

std::vector<int> NumbersOf(const base::Kept& item) {
  std::vector<int> numbers;
  for (const base::UniqueFd& fd : item.fds) numbers.push_back(fd.get());
  return numbers;
}

// One message; nullopt if there is none now.
absl::StatusOr<std::optional<KeeperMessage>> Receive(int socket) {
  std::array<std::byte, kMaxKeeperMessageBytes> bytes;
  Packet packet;
  ASSIGN_OR_RETURN(const IoResult result,
                   ReceivePacket(socket, bytes, &packet));
  if (result == IoResult::kWouldBlock) {
    return std::optional<KeeperMessage>();
  }
  if (packet.is_end) {
    return absl::UnavailableError("the keeper closed the connection");
  }
  const size_t size = packet.size;
  ASSIGN_OR_RETURN(
      KeeperMessage message,
      ParseKeeperMessage(std::span(bytes).first(size), std::move(packet)));
  return std::optional<KeeperMessage>(std::move(message));
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeeperClient>> KeeperClient::Connect(
    Options options, base::EventLoop* loop) {
  const absl::Time deadline = Now() + options.timeout;
  std::unique_ptr<KeeperClient> client(
      new KeeperClient(std::move(options), loop));
  for (bool is_first = true;; is_first = false) {
    absl::Status status = client->Open();
    if (status.ok()) status = client->List(deadline + kAnswerLimit);
    if (status.ok()) break;
    client->socket_.Reset();
    client->items_.clear();
    client->told_.clear();
    // A daemon that has just ended may still be there for a moment; an older
    // keeper gives up where too many descriptors are under way.
    const bool may_pass = absl::IsUnavailable(status) ||
                          absl::IsFailedPrecondition(status) ||
                          absl::IsResourceExhausted(status);
    if (!may_pass || Now() >= deadline) return status;
    if (is_first && client->options_.start != nullptr &&
        absl::IsUnavailable(status)) {
      client->options_.start();
    }
    // Before the loop runs nothing else could happen meanwhile.
    poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kStartPause)));
  }
  RETURN_IF_ERROR(client->Watch());
  return client;
}

KeeperClient::KeeperClient(Options options, base::EventLoop* loop)
    : options_(std::move(options)), loop_(loop) {}

KeeperClient::~KeeperClient() {
  if (socket_) loop_->UnwatchFd(socket_.get());
  loop_->Cancel(timer_);
  loop_->Cancel(stays_timer_);
  loop_->Cancel(offer_timer_);
}

absl::Status KeeperClient::Open() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (options_.path.empty() ||
      options_.path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "socket path ", options_.path, " has ", options_.path.size(),
        " bytes; use 1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, options_.path.data(), options_.path.size());
  base::UniqueFd socket(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::ErrnoStatus(errno, "socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) < 0) {
    const int error = errno;
    const absl::Status status =
        base::ErrnoStatus(error, absl::StrCat("no keeper at ", options_.path));
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
      return absl::UnavailableError(status.message());
    }
    return status;
  }
  socket_ = std::move(socket);
  opened_ = Now();
  return absl::OkStatus();
}

absl::Status KeeperClient::List(absl::Time deadline) {
  const absl::Status asked =
      SendPacket(socket_.get(), ToBytes(KeeperMessageKind::kList), {}).status();
  // A keeper that refuses before it reads has left its reason.
  if (!absl::IsUnavailable(asked)) RETURN_IF_ERROR(asked);
  for (;;) {
    ASSIGN_OR_RETURN(std::optional<KeeperMessage> message,
                     Receive(socket_.get()));
    if (!message.has_value()) {
      const absl::Duration left = deadline - Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("the keeper at ", options_.path, " does not answer"));
      }
      pollfd poll_fd{socket_.get(), POLLIN, 0};
      poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
      continue;
    }
    if (message->kind == KeeperMessageKind::kListEnd) {
      knows_sync_ = message->code == proto::kKeeperKnowsSync;
      return absl::OkStatus();
    }
    if (message->kind == KeeperMessageKind::kRefusal) return message->refusal;
    if (message->kind != KeeperMessageKind::kItem) {
      return absl::InternalError("the keeper answers in another protocol");
    }
    told_.insert(message->name);
    items_[message->name] = {message->name, std::move(message->note),
                             std::move(message->fds)};
  }
}

absl::Status KeeperClient::Watch() {
  return loop_->WatchFd(socket_.get(), EPOLLIN,
                        [this](uint32_t events) { OnSocket(events); });
}

absl::StatusOr<std::vector<base::Kept>> KeeperClient::Found() const {
  std::vector<base::Kept> found;
  for (const auto& [name, item] : items_) {
    ASSIGN_OR_RETURN(std::vector<base::UniqueFd> copies,
                     CopiesOf(NumbersOf(item)));
    found.push_back({item.name, item.note, std::move(copies)});
  }
  return found;
}

absl::Status KeeperClient::Put(std::string_view name, std::string_view note,
                               std::span<const int> fds) {
  RETURN_IF_ERROR(CheckKept(name, note, fds.size()));
  ASSIGN_OR_RETURN(std::vector<base::UniqueFd> copies, CopiesOf(fds));
  items_[std::string(name)] = {std::string(name), std::string(note),
                               std::move(copies)};
  Queue(name);
  return absl::OkStatus();
}

absl::Status KeeperClient::CheckHeld(std::string_view name) const {
  const std::string key(name);
  if (!items_.contains(key)) {
    return absl::NotFoundError(absl::StrCat("nothing was put as ", key));
  }
  if (!is_connected()) return absl::UnavailableError("there is no keeper");
  const auto it = refused_.find(key);
  return it == refused_.end() ? absl::OkStatus() : it->second.why;
}

void KeeperClient::Remove(std::string_view name) {
  refused_.erase(std::string(name));
  if (items_.erase(std::string(name)) > 0) Queue(name);
}

void KeeperClient::Queue(std::string_view name) {
  if (!socket_) return;  // all is told to the next one
  queue_.emplace_back(name);
  needs_sync_ = knows_sync_;
  FlushOrLose();
}

// A name that is there is put, one that is not any more removed: whatever
// happened since it was queued.
std::vector<std::byte> KeeperClient::NextWord(std::vector<int>* fds) const {
  if (queue_.empty()) return ToBytes(KeeperMessageKind::kSync);
  const std::string& name = queue_.front();
  if (name.empty()) {
    return ToBytes(KeeperMessageKind::kReset, "", "", proto::kResetMarks);
  }
  const auto it = items_.find(name);
  if (it == items_.end()) return ToBytes(KeeperMessageKind::kRemove, name);
  *fds = NumbersOf(it->second);
  return ToBytes(KeeperMessageKind::kPut, name, it->second.note);
}

void KeeperClient::OnWordSent() {
  if (queue_.empty()) {
    needs_sync_ = false;
    ++num_syncs_;
    return;
  }
  const std::string name = std::move(queue_.front());
  queue_.pop_front();
  if (const auto it = refused_.find(name); it != refused_.end()) {
    it->second.is_told_again = true;
  }
  if (items_.contains(name)) {
    told_.insert(name);
  } else {
    told_.erase(name);
  }
}

absl::Status KeeperClient::Flush() {
  while (!queue_.empty() || needs_sync_) {
    std::vector<int> fds;
    const std::vector<std::byte> bytes = NextWord(&fds);
    BALLAST_FAILPOINT("ipc.keeper_tell");
    const auto sent = SendPacket(socket_.get(), bytes, fds);
    if (absl::IsResourceExhausted(sent.status())) {
      if (timer_ == 0) {
        timer_ = loop_->PostAfter(kCrowdedPause, [this] {
          timer_ = 0;
          FlushOrLose();
        });
      }
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(sent.status());
    if (*sent == IoResult::kWouldBlock) {
      return loop_->ModifyFd(socket_.get(), EPOLLIN | EPOLLOUT);
    }
    OnWordSent();
  }
  return loop_->ModifyFd(socket_.get(), EPOLLIN);
}

void KeeperClient::FlushOrLose() {
  if (const absl::Status status = Flush(); !status.ok()) Lose(status);
}

void KeeperClient::OnSocket(uint32_t events) {
  absl::Status status = ReadSome();
  if (status.ok() && (events & EPOLLOUT) != 0) status = Flush();
  if (!status.ok()) Lose(status);
}

absl::Status KeeperClient::ReadSome() {
  for (;;) {
    ASSIGN_OR_RETURN(std::optional<KeeperMessage> message,
                     Receive(socket_.get()));
    if (!message.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(OnAnswer(*message));
  }
}

absl::Status KeeperClient::OnAnswer(const KeeperMessage& answer) {
  switch (answer.kind) {
    case KeeperMessageKind::kMarked:
      knows_sync_ = needs_sync_ = true;
      return Flush();
    case KeeperMessageKind::kSynced:
      if (num_syncs_ == 0) break;
      --num_syncs_;
      OnSynced();
      return absl::OkStatus();
    case KeeperMessageKind::kRefusal:
      if (answer.name.empty()) return answer.refusal;
      OnRefusal(answer);
      return absl::OkStatus();
    default:
      break;
  }
  return absl::InternalError("the keeper sent what nobody asked for");
}

// One that says nothing of what it takes (see is_flushed) is not asked again.
void KeeperClient::OnRefusal(const KeeperMessage& refusal) {
  if (!items_.contains(refusal.name)) return;
  const bool is_new =
      refused_.insert_or_assign(refusal.name, Refused{refusal.refusal}).second;
  if (offer_timer_ == 0 && knows_sync_) {
    offer_timer_ = loop_->PostAfter(kOfferPause, [this] { OfferRefused(); });
  }
  if (is_new && options_.on_refusal != nullptr) {
    options_.on_refusal(refusal.name, refusal.refusal);
  }
}

void KeeperClient::OfferRefused() {
  offer_timer_ = 0;
  if (!socket_ || refused_.empty()) return;
  for (const auto& [name, refused] : refused_) queue_.push_back(name);
  needs_sync_ = knows_sync_;  // there may be another keeper by now
  FlushOrLose();
}

void KeeperClient::OnSynced() {
  if (is_lost_) OnStayed();
  if (!is_flushed()) return;
  std::vector<std::string> taken;
  for (const auto& [name, refused] : refused_) {
    if (refused.is_told_again) taken.push_back(name);
  }
  for (const std::string& name : taken) {
    refused_.erase(name);
    if (options_.on_refusal != nullptr) {
      options_.on_refusal(name, absl::OkStatus());
    }
  }
}

void KeeperClient::Lose(const absl::Status& why) {
  loop_->UnwatchFd(socket_.get());
  socket_.Reset();
  queue_.clear();
  loop_->Cancel(timer_);
  loop_->Cancel(std::exchange(stays_timer_, 0));
  ++num_lost_;
  if (!std::exchange(is_lost_, true) && options_.warn != nullptr) {
    options_.warn(absl::StrCat(
        "keeper lost path=", options_.path, " reason=\"",
        std::string(why.message()),
        "\": until there is another one, a restart of the daemon ends its "
        "jobs"));
  }
  const bool has_lasted = Now() - opened_ >= kRetryPause;
  timer_ = loop_->PostAfter(has_lasted ? absl::ZeroDuration() : kRetryPause,
                            [this] { Retry(); });
}

void KeeperClient::Retry() {
  timer_ = 0;
  absl::Status status = Open();
  if (status.ok()) status = Watch();
  if (!status.ok()) {
    socket_.Reset();
    if (options_.start != nullptr) options_.start();
    timer_ = loop_->PostAfter(kRetryPause, [this] { Retry(); });
    return;
  }
  stays_timer_ = loop_->PostAfter(kRetryPause, [this] { OnStayed(); });
  knows_sync_ = needs_sync_ = false;
  num_syncs_ = 0;
  queue_.assign(1, "");
  // First what has gone meanwhile: with it a job that is over would be gone on
  // with, should this daemon die before the Sync.
  for (const std::string& name : told_) {
    if (!items_.contains(name)) queue_.push_back(name);
  }
  for (const auto& [name, item] : items_) queue_.push_back(name);
  FlushOrLose();
}

void KeeperClient::OnStayed() {
  loop_->Cancel(std::exchange(stays_timer_, 0));
  is_lost_ = false;
  if (options_.warn != nullptr) {
    options_.warn(absl::StrCat("keeper found path=", options_.path,
                               " names=", items_.size()));
  }
}

}  // namespace ballast::ipc
