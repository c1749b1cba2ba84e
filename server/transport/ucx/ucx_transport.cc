#include "server/transport/ucx/ucx_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/ucx/endpoint_token.h"

namespace ballast::transport {
namespace {

constexpr uint32_t kMinChunkBytes = 1 << 10;
constexpr uint32_t kMaxChunkBytes = 4 << 20;
constexpr int kMaxWindow = 64;

absl::Status Check(const UcxTransport::Options& options) {
  const uint32_t chunk = options.protocol.exchanges.chunk_bytes;
  if (chunk < kMinChunkBytes || chunk > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunks of ", chunk, " bytes, allowed are ",
                     kMinChunkBytes, " to ", kMaxChunkBytes));
  }
  if (options.wire.window < 1 || options.wire.window > kMaxWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", options.wire.window,
                     " messages, allowed are 1 to ", kMaxWindow));
  }
  for (const absl::Duration bound :
       {options.protocol.connect_timeout, options.protocol.peer_timeout,
        options.protocol.ping_interval, options.protocol.exchanges.deadline}) {
    if (bound <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError("a time limit that is not positive");
    }
  }
  if (options.protocol.ping_interval >= options.protocol.peer_timeout) {
    return absl::InvalidArgumentError(
        "a ping interval that is not below the peer timeout");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(
    const Options& options, NodeRank self, Incarnation incarnation,
    const base::Clock* clock, base::Executor* executor) {
  RETURN_IF_ERROR(Check(options));
  std::unique_ptr<UcxTransport> transport(
      new UcxTransport(options, self, incarnation, clock, executor));
  ASSIGN_OR_RETURN(transport->wire_,
                   Wire::Create(options.wire, &transport->protocol_, clock));
  if (options.has_thread) {
    transport->thread_ =
        std::thread([transport = transport.get()] { transport->Run(); });
  }
  return transport;
}

UcxTransport::UcxTransport(const Options& options, NodeRank self,
                           Incarnation incarnation, const base::Clock* clock,
                           base::Executor* executor)
    : options_(options),
      capabilities_{.name = "ucx",
                    .is_encrypted = false,
                    .moves_device_bytes = false,
                    .max_part_bytes = MaxPartBytes(options.protocol.exchanges)},
      self_(self),
      incarnation_(incarnation),
      clock_(clock),
      executor_(executor),
      hub_(std::make_shared<Hub>()),
      peer_link_(this),
      protocol_(options.protocol, self, incarnation) {
  hub_->transport = this;
}

UcxTransport::~UcxTransport() {
  hub_->transport = nullptr;
  if (thread_.joinable()) {
    is_stopping_.store(true, std::memory_order_release);
    wire_->Wake();
    thread_.join();
  }
  if (wire_ != nullptr) wire_->Drain();
}

void UcxTransport::Run() {
  while (!is_stopping_.load(std::memory_order_acquire)) {
    RunOnce(absl::InfiniteDuration());
  }
}

void UcxTransport::RunOnce(absl::Duration max_wait) {
  wire_->RunOnce(max_wait);
  if (protocol_.HasDeliveries()) ScheduleDelivery();
}

std::string UcxTransport::LocalToken() const {
  return EncodeToken({self_, incarnation_, wire_->address()},
                     options_.protocol.exchanges.checksum_seed);
}

absl::Status UcxTransport::Connect(NodeRank node, std::string_view token,
                                   Incarnation incarnation) {
  ASSIGN_OR_RETURN(
      EndpointToken peer,
      DecodeToken(token, options_.protocol.exchanges.checksum_seed));
  if (node == self_ || peer.node != node) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint token of node ", peer.node.value(), " for node ",
                     node.value(), " on node ", self_.value()));
  }
  if (peer.incarnation != incarnation) {
    return absl::FailedPreconditionError(absl::StrCat(
        "endpoint token of node ", node.value(), " is of another incarnation"));
  }
  const uint64_t connection =
      protocol_.Connect(node, incarnation, clock_->Now());
  wire_->Connect(node, connection, std::move(peer.address));
  Nudge();
  return absl::OkStatus();
}

void UcxTransport::Disconnect(NodeRank node) {
  protocol_.Disconnect(node);
  Nudge();
}

absl::Status UcxTransport::PeerStatus(NodeRank node) const {
  return protocol_.PeerStatus(node);
}

ByteCounters UcxTransport::PeerCounters(NodeRank node) const {
  return protocol_.PeerCounters(node);
}

ProtocolStats UcxTransport::stats() const { return protocol_.stats(); }

absl::StatusOr<std::unique_ptr<Exchange>> UcxTransport::Prepare(
    const ExchangeSpec& spec, ExchangeObserver* observer) {
  ASSIGN_OR_RETURN(PreparedExchange* const prepared, protocol_.Prepare(spec));
  auto exchange = std::make_unique<UcxExchange>(this, prepared, observer);
  exchanges_.emplace(exchange->id(), exchange.get());
  return exchange;
}

absl::Status UcxTransport::Link::Send(NodeRank to, std::string frame) {
  RETURN_IF_ERROR(transport_->protocol_.SendFrame(to, frame));
  transport_->Nudge();
  return absl::OkStatus();
}

void UcxTransport::Nudge() {
  wire_->Wake();
  if (protocol_.HasDeliveries()) ScheduleDelivery();
}

void UcxTransport::ScheduleDelivery() {
  if (hub_->is_scheduled.exchange(true)) return;
  executor_->Post([hub = hub_] {
    hub->is_scheduled.store(false);
    if (hub->transport != nullptr) hub->transport->Deliver();
  });
}

void UcxTransport::Deliver() {
  const std::shared_ptr<Hub> hub = hub_;  // an observer may end the transport
  Protocol::Deliveries deliveries = protocol_.TakeDeliveries();
  for (auto& [from, frame] : deliveries.frames) {
    if (hub->transport == nullptr) return;
    PeerLinkObserver* const observer = peer_link_.observer();
    if (observer != nullptr) observer->OnFrame(from, std::move(frame));
  }
  for (const Completion& completion : deliveries.completions) {
    if (hub->transport == nullptr) return;
    const auto it = exchanges_.find(completion.exchange);
    if (it != exchanges_.end()) it->second->OnCompletion(completion);
  }
}

}  // namespace ballast::transport
