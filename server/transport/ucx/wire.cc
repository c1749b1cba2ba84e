#include "server/transport/ucx/wire.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::transport {
namespace {

// More than UCX's own headers take.
constexpr size_t kUcxHeaderBytes = 1024;
// Between two looks at what is to be sent.
constexpr int kMaxProgressCalls = 16;
// For endpoints to finish closing, which needs no peer.
// For those who were connecting when this end closed.
constexpr absl::Duration kLastRequests = absl::Milliseconds(20);
constexpr absl::Duration kSettleLimit = absl::Seconds(1);
constexpr int kMaxSettleTurns = 10'000'000;  // should the clock stand still
// Messages given to UCX for one peer before the next one has its turn.
constexpr int kMaxSendsPerTurn = 8;

}  // namespace

// One peer's endpoint and the messages on their way to it.
class Wire::Link {
 public:
  Link(NodeRank node, uint64_t connection, int window, size_t slot_bytes)
      : node_(node), connection_(connection) {
    for (int i = 0; i < window; ++i) {
      slots_.push_back(std::make_unique<Slot>(slot_bytes));
    }
  }

  NodeRank node() const { return node_; }
  uint64_t connection() const { return connection_; }
  absl::Status status() const {
    return endpoint_ == nullptr ? status_ : endpoint_->status();
  }
  bool is_idle() const {
    return !frame_.is_busy && std::ranges::none_of(slots_, [](const auto& s) {
      return s->is_busy;
    });
  }

  void Open(UcpWorker* worker, const std::string& address) {
    auto endpoint = UcpEndpoint::Connect(worker, address);
    status_ = endpoint.status();
    if (endpoint.ok()) endpoint_ = *std::move(endpoint);
  }
  void Close() { endpoint_.reset(); }

  // Gives UCX what the protocol has; nullopt if the link is to be closed,
  // otherwise whether there was something.
  std::optional<bool> Pump(Protocol* protocol) {
    bool did_send = false;
    for (int i = 0; i < kMaxSendsPerTurn; ++i) {
      Slot* const slot = FreeSlot();
      if (slot == nullptr || !status().ok()) break;
      size_t size = 0;
      const Protocol::Next next =
          protocol->NextMessage(node_, connection_, !frame_.is_busy,
                                slot->bytes, &size, &frame_.message);
      if (next == Protocol::Next::kClose) return std::nullopt;
      if (next == Protocol::Next::kNothing) break;
      did_send = true;
      if (next == Protocol::Next::kFrame) {
        Send(std::as_bytes(std::span(frame_.message)), &frame_);
      } else {
        Send(std::span(slot->bytes).first(size), slot);
      }
    }
    return did_send;
  }

 private:
  struct Buffer : UcpSendObserver {
    void OnSent() override { is_busy = false; }
    bool is_busy = false;
  };
  struct Slot final : Buffer {
    explicit Slot(size_t size) : bytes(size) {}
    std::vector<std::byte> bytes;
  };
  // One at a time keeps frames in order.
  struct Frame final : Buffer {
    std::string message;
  };

  void Send(std::span<const std::byte> message, Buffer* buffer) {
    buffer->is_busy = true;
    // The error shows in status(), the buffer was not taken.
    if (!endpoint_->Send(message, buffer).ok()) buffer->is_busy = false;
  }

  Slot* FreeSlot() {
    const auto it = std::ranges::find_if(
        slots_, [](const auto& slot) { return !slot->is_busy; });
    return it == slots_.end() ? nullptr : it->get();
  }

  const NodeRank node_;
  const uint64_t connection_;
  absl::Status status_;
  std::vector<std::unique_ptr<Slot>> slots_;
  Frame frame_;
  std::unique_ptr<UcpEndpoint> endpoint_;  // last: closing tells the slots
};

Wire::Wire(const Options& options, Protocol* protocol, const base::Clock* clock)
    : options_(options), protocol_(protocol), clock_(clock) {}

absl::StatusOr<std::unique_ptr<Wire>> Wire::Create(const Options& options,
                                                   Protocol* protocol,
                                                   const base::Clock* clock) {
  std::unique_ptr<Wire> wire(new Wire(options, protocol, clock));
  wire->wake_ = base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wire->wake_) return base::ErrnoStatus(errno, "eventfd");
  UcpWorker::Options worker_options;
  worker_options.transports = options.transports;
  worker_options.devices = options.devices;
  worker_options.listen_address = options.listen_address;
  worker_options.segment_bytes =
      std::max(worker_options.segment_bytes,
               protocol->max_message_bytes() + kUcxHeaderBytes);
  ASSIGN_OR_RETURN(wire->worker_,
                   UcpWorker::Create(worker_options, wire.get()));
  ASSIGN_OR_RETURN(wire->address_, wire->worker_->Address());
  return wire;
}

Wire::~Wire() {
  if (worker_ == nullptr) return;  // Create failed
  const absl::Time moment = clock_->Now() + kLastRequests;
  worker_->StopListening([&] { return clock_->Now() < moment; });
  for (const ucp_conn_request_h request : requests_) worker_->Reject(request);
  incoming_.clear();
  for (auto& [node, link] : links_) link->Close();
  const absl::Time end = clock_->Now() + kSettleLimit;
  int turns = 0;
  const bool is_settled = worker_->Settle(
      [&] { return clock_->Now() < end && ++turns < kMaxSettleTurns; });
  if (!is_settled) worker_->Abandon();
  worker_.reset();  // gives back what the retired links still lend
}

void Wire::Connect(NodeRank node, uint64_t connection, std::string address) {
  {
    base::MutexLock lock(&mutex_);
    commands_.push_back({node, connection, std::move(address)});
  }
  Wake();
}

void Wire::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(wake_.get(), &one, sizeof(one));
}

void Wire::OnMessage(std::span<const std::byte> message) {
  protocol_->OnMessage(message, clock_->Now());
}

void Wire::OnConnection(ucp_conn_request_h request) {
  requests_.push_back(request);
}

void Wire::Accept() {
  std::erase_if(incoming_,
                [](const auto& endpoint) { return !endpoint->status().ok(); });
  for (const ucp_conn_request_h request : std::exchange(requests_, {})) {
    if (static_cast<int>(incoming_.size()) >= options_.max_incoming) {
      worker_->Reject(request);
      continue;
    }
    auto endpoint = UcpEndpoint::Accept(worker_.get(), request);
    // If it broke already, the other side tries again or fails.
    if (endpoint.ok()) incoming_.push_back(*std::move(endpoint));
  }
}

void Wire::RunCommands() {
  std::vector<Command> commands;
  {
    base::MutexLock lock(&mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    std::unique_ptr<Link>& link = links_[command.node];
    if (link != nullptr) Retire(std::move(link));
    link =
        std::make_unique<Link>(command.node, command.connection,
                               options_.window, protocol_->max_message_bytes());
    link->Open(worker_.get(), command.address);
  }
}

void Wire::Retire(std::unique_ptr<Link> link) {
  link->Close();
  if (!link->is_idle()) retired_.push_back(std::move(link));
}

bool Wire::MakeProgress() {
  bool did_something = false;
  for (int i = 0; i < kMaxProgressCalls && worker_->Progress(); ++i) {
    did_something = true;
  }
  return did_something;
}

bool Wire::Pump() {
  bool did_something = false;
  for (auto it = links_.begin(); it != links_.end();) {
    Link* const link = it->second.get();
    const std::optional<bool> did_send = link->Pump(protocol_);
    if (!link->status().ok()) {
      protocol_->OnConnectionFailed(link->node(), link->connection(),
                                    link->status());
    } else if (did_send.has_value()) {
      did_something |= *did_send;
      ++it;
      continue;
    }
    did_something = true;
    Retire(std::move(it->second));
    links_.erase(it++);
  }
  std::erase_if(retired_, [](const auto& link) { return link->is_idle(); });
  return did_something;
}

void Wire::Tick() {
  const absl::Time now = clock_->Now();
  if (now < next_tick_) return;
  next_tick_ = now + protocol_->tick_period();
  protocol_->Tick(now);
}

void Wire::RunOnce(absl::Duration max_wait) {
  RunCommands();
  bool did_something = MakeProgress();
  Accept();
  Tick();
  did_something |= Pump();
  if (!did_something) WaitFor(max_wait);
}

void Wire::WaitFor(absl::Duration max_wait) {
  if (!worker_->Arm()) return;  // there is something already
  const absl::Duration wait =
      std::clamp(std::min(max_wait, next_tick_ - clock_->Now()),
                 absl::ZeroDuration(), absl::Seconds(1));
  std::array<pollfd, 2> fds = {
      {{worker_->event_fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  poll(fds.data(), fds.size(),
       static_cast<int>(
           absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)))));
  if (fds[1].revents != 0) {
    uint64_t count;
    [[maybe_unused]] const ssize_t size =
        read(wake_.get(), &count, sizeof(count));
  }
}

void Wire::Drain() {
  const absl::Time end = clock_->Now() + options_.drain_timeout;
  const auto is_idle = [&] {
    return std::ranges::all_of(
        links_, [](const auto& entry) { return entry.second->is_idle(); });
  };
  bool did_something = true;
  while ((did_something || !is_idle()) && clock_->Now() < end) {
    did_something = MakeProgress();
    did_something |= Pump();
    if (!did_something && !is_idle()) WaitFor(end - clock_->Now());
  }
  worker_->Flush([&] { return clock_->Now() < end; });
}

}  // namespace ballast::transport
