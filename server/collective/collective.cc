#include "server/collective/collective.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/collective/broadcast.h"
#include "server/collective/bucket_publisher.h"
#include "server/collective/bucket_reducer.h"
#include "server/collective/context.h"
#include "server/collective/reduce_order.h"
#include "server/collective/window_plan.h"

namespace ballast::collective {
namespace {

absl::Status CheckParts(const Parts& parts) {
  const layout::Layout& layout = *parts.layout;
  const layout::Topology& topology = layout.topology();
  if (parts.gradients.size() !=
      static_cast<size_t>(topology.local_world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts.gradients.size(), " gradient segments for ",
                     topology.local_world_size, " local ranks"));
  }
  for (size_t i = 0; i < parts.gradients.size(); ++i) {
    if (parts.gradients[i].size() < layout.gradients_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient segment of local rank ", i, " has ",
                       parts.gradients[i].size(), " of ",
                       layout.gradients_bytes(), " bytes"));
    }
  }
  if (parts.weights.size() < layout.weights_bytes() ||
      static_cast<int64_t>(parts.state_gradient.size()) <
          layout.state_elements(parts.node)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of ", parts.weights.size(), " bytes and a state gradient of ",
        parts.state_gradient.size(), " elements; the layout has ",
        layout.weights_bytes(), " and ", layout.state_elements(parts.node)));
  }
  if (parts.buckets_in_flight < 1) {
    return absl::InvalidArgumentError(absl::StrCat("buckets_in_flight is ",
                                                   parts.buckets_in_flight,
                                                   "; at least one is needed"));
  }
  if (topology.num_nodes > 1 && parts.transport == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(topology.num_nodes, " nodes and no transport"));
  }
  return absl::OkStatus();
}

class HierarchicalCollective final : public Collective,
                                     private OperationObserver {
 public:
  HierarchicalCollective(const Parts& parts, Generation generation)
      : context_(parts, generation, this),
        num_windows_(std::clamp<int>(parts.layout->buckets().size(), 1,
                                     parts.buckets_in_flight)),
        order_(parts.layout->buckets().size(), num_windows_),
        broadcast_(&context_),
        fail_(&context_.gate, [this] { OnOperationFailed(failure_); }) {}

  absl::Status Prepare() {
    int64_t window_elements = 0;
    if (has_peers()) {
      ASSIGN_OR_RETURN(window_elements, AllocateWindows());
    }
    for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
      std::span<float> window;
      if (has_peers()) {
        window = windows().subspan(
            bucket.id.value() % num_windows_ * window_elements,
            window_elements);
      }
      ASSIGN_OR_RETURN(auto reducer,
                       BucketReducer::Create(&context_, bucket.id, window));
      reducers_.push_back(std::move(reducer));
      ASSIGN_OR_RETURN(auto publisher,
                       BucketPublisher::Create(&context_, bucket.id));
      publishers_.push_back(std::move(publisher));
    }
    return absl::OkStatus();
  }

  void StartReduce(BucketId bucket, Step step) override {
    if (context_.gate.is_shut()) return;
    if (!has_peers()) {
      reducers_[bucket.value()]->Start(step);
      return;
    }
    order_.Request(bucket, step);
    EnterBuckets();
  }

  void StartPublish(BucketId bucket, Step step) override {
    if (context_.gate.is_shut()) return;
    FailLater(publishers_[bucket.value()]->Start(step));
  }

  void StartBroadcast(NodeRank root) override {
    if (context_.gate.is_shut()) return;
    FailLater(broadcast_.Start(root));
  }

  void Cancel(absl::AnyInvocable<void() &&> done) override {
    Stop();
    context_.gate.WhenIdle(std::move(done));
  }

  ByteCounts byte_counts() const override {
    ByteCounts counts;
    const auto add = [&counts](const transport::Exchange* exchange) {
      if (exchange == nullptr) return;
      counts.wire_sent += exchange->counters().wire_sent;
      counts.wire_received += exchange->counters().wire_received;
    };
    for (const auto& reducer : reducers_) {
      add(reducer->exchange());
      counts.payload_sent += reducer->payload_sent();
    }
    for (const auto& publisher : publishers_) {
      add(publisher->exchange());
      counts.payload_sent += publisher->payload_sent();
    }
    for (const auto& exchange : broadcast_.exchanges()) add(exchange.get());
    return counts;
  }

 private:
  bool has_peers() const {
    return context_.parts.layout->topology().num_nodes > 1;
  }
  CollectiveObserver* observer() const { return context_.parts.observer; }
  std::span<float> windows() const {
    const std::span<std::byte> bytes = windows_->bytes();
    return {reinterpret_cast<float*>(bytes.data()),
            bytes.size() / sizeof(float)};
  }

  // All windows in one buffer; returns the elements of one.
  absl::StatusOr<int64_t> AllocateWindows() {
    int64_t elements = layout::kAlignElements;
    for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
      elements = std::max(
          elements,
          PlanWindow(bucket, context_.tree, context_.parts.node).elements);
    }
    ASSIGN_OR_RETURN(windows_, context_.parts.device->AllocatePrivate(
                                   num_windows_ * elements * sizeof(float),
                                   "windows of buckets between nodes"));
    return elements;
  }

  void EnterBuckets() {
    while (const std::optional<ReduceRequest> next = order_.Enter()) {
      reducers_[next->bucket.value()]->Start(next->step);
    }
  }

  // No byte of borrowed memory is touched by the transport afterwards, and no
  // task that ends is heard of.
  void Stop() {
    context_.gate.Shut();
    for (const auto& reducer : reducers_) reducer->Cancel();
    for (const auto& publisher : publishers_) publisher->Cancel();
    broadcast_.Cancel();
  }

  void FailLater(absl::Status status) {
    if (status.ok() || !failure_.ok()) return;
    failure_ = std::move(status);
    context_.gate.Submit(&fail_);
  }

  void OnBucketReduced(BucketId bucket, const Reduced& reduced) override {
    if (has_peers()) {
      order_.Leave(bucket);
      EnterBuckets();
    }
    observer()->OnReduced(bucket, reduced);
  }

  void OnBucketPublished(BucketId bucket) override {
    observer()->OnPublished(bucket);
  }

  void OnAllBroadcast() override { observer()->OnBroadcast(); }

  void OnOperationFailed(const absl::Status& status) override {
    if (context_.gate.is_shut()) return;
    absl::Status copy = status;  // of an operation that Stop changes
    Stop();
    observer()->OnFailed(std::move(copy));
  }

  Context context_;
  const int num_windows_;
  ReduceOrder order_;
  std::unique_ptr<device::PrivateBuffer> windows_;  // outlives the exchanges
  std::vector<std::unique_ptr<BucketReducer>> reducers_;  // per bucket
  std::vector<std::unique_ptr<BucketPublisher>> publishers_;
  Broadcast broadcast_;
  absl::Status failure_;  // of a Start call, on its way to the observer
  EmptyTask fail_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> Collective::Create(
    const Parts& parts, Generation generation) {
  RETURN_IF_ERROR(CheckParts(parts));
  auto collective = std::make_unique<HierarchicalCollective>(parts, generation);
  RETURN_IF_ERROR(collective->Prepare());
  return collective;
}

}  // namespace ballast::collective
