#include "server/transport/inproc/inproc_transport.h"

#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/inproc/inproc_exchange.h"

namespace ballast::transport {
namespace {

absl::Status CheckPeers(NodeRank self, const ExchangeSpec& spec) {
  absl::flat_hash_set<NodeRank> senders;
  absl::flat_hash_set<NodeRank> receivers;
  const auto check = [&](NodeRank peer, absl::flat_hash_set<NodeRank>* seen) {
    if (peer == self) {
      return absl::InvalidArgumentError("an exchange with oneself");
    }
    if (!seen->insert(peer).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parts for node ", peer.value()));
    }
    return absl::OkStatus();
  };
  for (const SendPart& part : spec.sends) {
    RETURN_IF_ERROR(check(part.to, &receivers));
  }
  for (const ReceivePart& part : spec.receives) {
    RETURN_IF_ERROR(check(part.from, &senders));
  }
  return absl::OkStatus();
}

}  // namespace

class InprocEndpoint final : public Transport {
 public:
  InprocEndpoint(InprocNetwork* network, NodeRank self,
                 base::Executor* executor)
      : network_(network), self_(self), executor_(executor) {}
  ~InprocEndpoint() override { network_->RemoveNode(self_); }

  const Capabilities& capabilities() const override { return capabilities_; }
  NodeRank self() const override { return self_; }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const ExchangeSpec& spec, ExchangeObserver* observer) override {
    RETURN_IF_ERROR(CheckPeers(self_, spec));
    const InprocNetwork::Identity identity = {spec.job, spec.generation.value(),
                                              spec.phase, spec.bucket.value(),
                                              self_.value()};
    if (network_->Find(identity) != nullptr) {
      return absl::AlreadyExistsError(absl::StrCat(
          "an exchange of phase ", spec.phase, ", bucket ", spec.bucket.value(),
          ", generation ", spec.generation.value(),
          " is already prepared on node ", self_.value()));
    }
    return std::make_unique<InprocExchange>(network_, self_, executor_, spec,
                                            observer);
  }

 private:
  const Capabilities capabilities_ = {.name = "inproc",
                                      .is_encrypted = false,
                                      .moves_device_bytes = false,
                                      .max_part_bytes = UINT64_MAX};
  InprocNetwork* const network_;
  const NodeRank self_;
  base::Executor* const executor_;
};

InprocNetwork::InprocNetwork(LinkModel* links) : links_(links) {
  links_->OnHeal([this] { ResumeHeld(); });
}

InprocNetwork::~InprocNetwork() = default;

absl::StatusOr<std::unique_ptr<Transport>> InprocNetwork::AddNode(
    NodeRank node, base::Executor* executor) {
  if (endpoints_.contains(node)) {
    return absl::AlreadyExistsError(
        absl::StrCat("node ", node.value(), " has an endpoint"));
  }
  auto endpoint = std::make_unique<InprocEndpoint>(this, node, executor);
  endpoints_.emplace(node, endpoint.get());
  return endpoint;
}

void InprocNetwork::RemoveNode(NodeRank node) {
  endpoints_.erase(node);
  for (auto& [id, exchange] : by_id_) {
    if (exchange->WaitsFor(node)) {
      exchange->Finish(absl::UnavailableError(
          absl::StrCat("node ", node.value(), " is gone")));
    }
  }
}

InprocExchange* InprocNetwork::Find(const Identity& identity) {
  const auto it = by_identity_.find(identity);
  return it == by_identity_.end() ? nullptr : it->second;
}

InprocExchange* InprocNetwork::Find(const Ticket& ticket) {
  InprocExchange* const exchange = FindById(ticket.exchange);
  return exchange != nullptr && exchange->post_ == ticket.post ? exchange
                                                               : nullptr;
}

InprocExchange* InprocNetwork::FindById(uint64_t id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

void InprocNetwork::Match(InprocExchange* exchange) {
  for (const auto& part : exchange->sends_) {
    InprocExchange* const peer = Find(exchange->IdentityOf(part.node));
    if (peer != nullptr) StartPart(exchange, peer);
  }
  for (const auto& part : exchange->receives_) {
    InprocExchange* const peer = Find(exchange->IdentityOf(part.node));
    if (peer != nullptr) StartPart(peer, exchange);
  }
}

void InprocNetwork::StartPart(InprocExchange* sender,
                              InprocExchange* receiver) {
  auto* const send = sender->OpenSend(receiver->self_);
  auto* const receive = receiver->OpenReceive(sender->self_);
  if (send == nullptr || receive == nullptr ||
      sender->step_ != receiver->step_ ||
      send->under_way_to == receiver->ticket()) {
    return;
  }
  send->under_way_to = receiver->ticket();
  SendPart(sender->ticket(), receiver->ticket());
}

void InprocNetwork::SendPart(const Ticket& sender, const Ticket& receiver) {
  InprocExchange* const from = Find(sender);
  InprocExchange* const to = Find(receiver);
  if (from == nullptr || to == nullptr) return;
  if (links_->IsCut(from->self_, to->self_)) {
    held_.emplace_back(sender, receiver);
    return;
  }
  const uint64_t bytes = from->SendBytes(to->self_).size() + kHeaderBytes;
  const auto count = [&] {
    from->counters_.wire_sent += bytes;
    links_->CountBytes(from->self_, to->self_, bytes);
  };
  count();
  if (links_->DrawLoss()) {
    links_->executor()->PostAfter(
        links_->faults().resend_delay,
        [this, sender, receiver] { SendPart(sender, receiver); });
    return;
  }
  const auto arrive_later = [&] {
    ScheduleArrival(links_->DrawDelay(from->self_, to->self_, bytes), sender,
                    receiver);
  };
  arrive_later();
  if (links_->DrawDuplicate()) {
    count();
    arrive_later();
  }
}

void InprocNetwork::ScheduleArrival(absl::Duration delay, const Ticket& sender,
                                    const Ticket& receiver) {
  links_->executor()->PostAfter(
      delay, [this, sender, receiver] { Arrive(sender, receiver); });
}

void InprocNetwork::Arrive(const Ticket& sender, const Ticket& receiver) {
  InprocExchange* const from = Find(sender);
  InprocExchange* const to = Find(receiver);
  // The fence: of a side that cancelled, or went on to another step, nothing
  // is read and nothing written.
  if (from == nullptr || to == nullptr) return;
  if (links_->IsCut(from->self_, to->self_)) {
    held_.emplace_back(sender, receiver);
    return;
  }
  auto* const send = from->OpenSend(to->self_);
  auto* const receive = to->OpenReceive(from->self_);
  // A repetition finds them closed.
  if (send == nullptr || receive == nullptr) return;
  const std::span<const std::byte> source = from->SendBytes(to->self_);
  const std::span<std::byte> target = to->ReceiveBytes(from->self_);
  to->counters_.wire_received += source.size() + kHeaderBytes;
  if (source.size() != target.size()) {
    const absl::Status status = absl::DataLossError(
        absl::StrCat("node ", from->self_.value(), " sends ", source.size(),
                     " bytes of bucket ", from->spec_.bucket.value(), ", node ",
                     to->self_.value(), " expects ", target.size()));
    from->Finish(status);
    to->Finish(status);
    return;
  }
  if (!source.empty()) {
    std::memcpy(target.data(), source.data(), source.size());
  }
  from->counters_.payload_sent += source.size();
  to->counters_.payload_received += source.size();
  from->FinishPart(send);
  to->FinishPart(receive);
}

void InprocNetwork::ResumeHeld() {
  for (const auto& [sender, receiver] : std::exchange(held_, {})) {
    SendPart(sender, receiver);
  }
}

}  // namespace ballast::transport
