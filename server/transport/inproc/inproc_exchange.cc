#include "server/transport/inproc/inproc_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::transport {

InprocExchange::InprocExchange(InprocNetwork* network, NodeRank self,
                               base::Executor* executor, ExchangeSpec spec,
                               ExchangeObserver* observer)
    : network_(network),
      id_(network->next_id_++),
      self_(self),
      executor_(executor),
      spec_(std::move(spec)),
      observer_(observer) {
  for (const SendPart& part : spec_.sends) sends_.push_back({part.to});
  for (const ReceivePart& part : spec_.receives) {
    receives_.push_back({part.from});
  }
  network_->by_identity_.emplace(IdentityOf(self_), this);
  network_->by_id_.emplace(id_, this);
}

InprocExchange::~InprocExchange() {
  Cancel();
  network_->by_identity_.erase(IdentityOf(self_));
  network_->by_id_.erase(id_);
}

InprocNetwork::Identity InprocExchange::IdentityOf(NodeRank node) const {
  return {spec_.job, spec_.generation.value(), spec_.phase,
          spec_.bucket.value(), node.value()};
}

absl::Status InprocExchange::Post(Step step) {
  if (is_posted_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step_.value(), " is posted, cannot post step ", step.value()));
  }
  is_posted_ = true;
  is_finished_ = false;
  ++post_;
  step_ = step;
  num_open_ = sends_.size() + receives_.size();
  for (auto* parts : {&sends_, &receives_}) {
    for (Peer& part : *parts) part = Peer{part.node};
  }
  if (num_open_ == 0) {
    Finish(absl::OkStatus());
  } else {
    network_->Match(this);
  }
  return absl::OkStatus();
}

void InprocExchange::Cancel() {
  is_posted_ = false;
  is_finished_ = false;
  ++post_;
}

InprocExchange::Peer* InprocExchange::OpenSend(NodeRank to) {
  if (!is_posted_ || is_finished_) return nullptr;
  const auto it = std::ranges::find_if(
      sends_, [&](const Peer& p) { return p.node == to && !p.is_done; });
  return it == sends_.end() ? nullptr : &*it;
}

InprocExchange::Peer* InprocExchange::OpenReceive(NodeRank from) {
  if (!is_posted_ || is_finished_) return nullptr;
  const auto it = std::ranges::find_if(
      receives_, [&](const Peer& p) { return p.node == from && !p.is_done; });
  return it == receives_.end() ? nullptr : &*it;
}

std::span<const std::byte> InprocExchange::SendBytes(NodeRank to) const {
  return std::ranges::find(spec_.sends, to, &SendPart::to)->bytes;
}

std::span<std::byte> InprocExchange::ReceiveBytes(NodeRank from) const {
  return std::ranges::find(spec_.receives, from, &ReceivePart::from)->bytes;
}

bool InprocExchange::WaitsFor(NodeRank node) const {
  if (!is_posted_ || is_finished_) return false;
  const auto waits = [&](const Peer& part) {
    return part.node == node && !part.is_done;
  };
  return std::ranges::any_of(sends_, waits) ||
         std::ranges::any_of(receives_, waits);
}

void InprocExchange::FinishPart(Peer* part) {
  part->is_done = true;
  if (--num_open_ == 0) Finish(absl::OkStatus());
}

void InprocExchange::Finish(const absl::Status& status) {
  is_finished_ = true;
  result_ = status;
  // Two words: fits into the function object without an allocation.
  executor_->Post([network = network_, id = id_] {
    if (InprocExchange* const exchange = network->FindById(id)) {
      exchange->Report();
    }
  });
}

void InprocExchange::Report() {
  if (!is_finished_) return;  // cancelled meanwhile
  is_posted_ = false;
  is_finished_ = false;
  ++post_;
  // Last: the observer may release the exchange.
  observer_->OnExchangeDone(this, step_, result_);
}

}  // namespace ballast::transport
