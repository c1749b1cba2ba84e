#include "server/collective/broadcast.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/collective/owned_weights.h"

namespace ballast::collective {
namespace {

constexpr uint64_t kPartBytes = 16 << 20;

}  // namespace

Broadcast::Broadcast(Context* context)
    : context_(context),
      done_(&context->gate, [this] { context_->observer->OnAllBroadcast(); }) {}

absl::Status Broadcast::Start(NodeRank root, Step step) {
  if (root_ != root) RETURN_IF_ERROR(Prepare(root));
  num_left_ = exchanges_.size();
  if (exchanges_.empty()) context_->gate.Submit(&done_);
  for (const auto& exchange : exchanges_) {
    RETURN_IF_ERROR(exchange->Post(step));
  }
  return absl::OkStatus();
}

absl::Status Broadcast::Prepare(NodeRank root) {
  const int num_nodes = context_->parts.layout->topology().num_nodes;
  if (root.value() < 0 || root.value() >= num_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a broadcast from node ", root.value(), " of ", num_nodes));
  }
  exchanges_.clear();
  if (num_nodes > 1) {
    RETURN_IF_ERROR(context_->parts.owned != nullptr ? PrepareUnits(root)
                                                     : PrepareSegment(root));
  }
  root_ = root;
  return absl::OkStatus();
}

absl::Status Broadcast::PrepareSegment(NodeRank root) {
  std::span<std::byte> rest =
      context_->parts.weights.first(context_->parts.layout->weights_bytes());
  const uint64_t part_bytes = std::min(
      kPartBytes, context_->parts.transport->capabilities().max_part_bytes);
  while (!rest.empty()) {
    const uint64_t size = std::min<uint64_t>(part_bytes, rest.size());
    RETURN_IF_ERROR(PreparePart(root, rest.first(size)));
    rest = rest.subspan(size);
  }
  return absl::OkStatus();
}

absl::Status Broadcast::PrepareUnits(NodeRank root) {
  OwnedWeights* const owned = context_->parts.owned;
  const bool is_root = context_->parts.node == root;
  for (int u = 0; u < owned->units().size(); ++u) {
    transport::ExchangeSpec spec =
        context_->Spec(kBroadcastPhase, BucketId(u), 0);
    const layout::GatherUnit& unit = owned->units().unit(u);
    const layout::Topology& topology = context_->topology();
    for (int n = 0; is_root && n < topology.num_nodes; ++n) {
      const NodeRank node(n);
      const layout::ByteRange& part =
          unit.parts[topology.OwnerOf(node).value()];
      if (node == root || part.empty()) continue;
      spec.sends.push_back(
          {node, context_->parts.initial.subspan(part.begin, part.size())});
    }
    if (!is_root && !owned->Raw(u).empty()) {
      spec.receives.push_back({root, owned->Raw(u)});
    }
    if (spec.sends.empty() && spec.receives.empty()) continue;
    RETURN_IF_ERROR(Add(spec));
  }
  return absl::OkStatus();
}

absl::Status Broadcast::Add(const transport::ExchangeSpec& spec) {
  ASSIGN_OR_RETURN(std::unique_ptr<transport::Exchange> exchange,
                   context_->parts.transport->Prepare(spec, this));
  exchanges_.push_back(std::move(exchange));
  return absl::OkStatus();
}

absl::Status Broadcast::PreparePart(NodeRank root, std::span<std::byte> bytes) {
  const int32_t index = static_cast<int32_t>(exchanges_.size());
  transport::ExchangeSpec spec =
      context_->Spec(kBroadcastPhase, BucketId(index), 0);
  const NodeRank self = context_->parts.node;
  if (self != root) spec.receives.push_back({root, bytes});
  const int num_nodes = context_->parts.layout->topology().num_nodes;
  for (int node = 0; self == root && node < num_nodes; ++node) {
    if (node != root.value()) spec.sends.push_back({NodeRank(node), bytes});
  }
  return Add(spec);
}

void Broadcast::Cancel() {
  for (const auto& exchange : exchanges_) exchange->Cancel();
}

void Broadcast::OnExchangeDone(transport::Exchange*, Step,
                               const absl::Status& status) {
  if (!status.ok()) {
    context_->observer->OnOperationFailed(status);
    return;
  }
  if (--num_left_ == 0) context_->observer->OnAllBroadcast();
}

}  // namespace ballast::collective
