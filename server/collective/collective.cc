#include "server/collective/collective.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/broadcast.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/bucket_publisher.h"
#include "server/collective/bucket_reducer.h"
#include "server/collective/chunk_coder.h"
#include "server/collective/chunk_keeper.h"
#include "server/collective/codec_registry.h"
#include "server/collective/coded_publisher.h"
#include "server/collective/coded_reducer.h"
#include "server/collective/context.h"
#include "server/collective/delta_coder.h"
#include "server/collective/halving_reducer.h"
#include "server/collective/reduce_order.h"
#include "server/collective/resync.h"
#include "server/collective/value_coder.h"
#include "server/collective/windows.h"

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
  if (parts.plan != nullptr && parts.plan->quantizes_weights() &&
      static_cast<int64_t>(parts.master.size()) <
          layout.state_elements(parts.node)) {
    return absl::InvalidArgumentError(
        absl::StrCat("masters of ", parts.master.size(),
                     " elements for quantized weights; the layout has ",
                     layout.state_elements(parts.node)));
  }
  if (parts.plan != nullptr && parts.plan->codes_deltas() &&
      parts.published == nullptr) {
    return absl::InvalidArgumentError("deltas of weights, and no checksums");
  }
  if (parts.pulls != nullptr && parts.executor == nullptr) {
    return absl::InvalidArgumentError("pulls, and no executor");
  }
  if (parts.buckets_in_flight < 1 || parts.batch_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buckets_in_flight is ", parts.buckets_in_flight, ", batch_bytes ",
        parts.batch_bytes, "; both are at least one"));
  }
  if (topology.num_nodes > 1 && parts.transport == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(topology.num_nodes, " nodes and no transport"));
  }
  return absl::OkStatus();
}

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

class HierarchicalCollective final : public Collective,
                                     private OperationObserver {
 public:
  HierarchicalCollective(const Parts& parts, Generation generation)
      : context_(parts, generation, this),
        num_windows_(std::clamp<int>(parts.layout->buckets().size(), 1,
                                     parts.buckets_in_flight)),
        reduce_order_(parts.layout->buckets().size(), num_windows_),
        publish_order_(parts.layout->buckets().size(), num_windows_),
        broadcast_(&context_),
        compared_(&context_.gate, [this] { observer()->OnCompared(); }),
        fail_(&context_.gate, [this] { OnOperationFailed(failure_); }) {}

  absl::Status Prepare() {
    if (codes_gradients()) {
      MakeCodecs(&context_.gradient_codecs, [](const auto& codecs, auto) {
        return std::pair(codecs.gradients, kernels::DType::kFloat32);
      });
    }
    if (codes_weights()) {
      MakeCodecs(&context_.weight_codecs, [](const auto& codecs, auto dtype) {
        return std::pair(codecs.weights, dtype);
      });
      coder_ = codes_deltas() ? MakeDeltaCoder(&context_)
                              : MakeValueCoder(&context_);
    }
    if (codes_deltas() && context_.parts.pulls != nullptr) {
      keeper_.emplace(&context_, [this](const absl::Status& status) {
        OnAllCompared(status);
      });
      context_.watch = &*keeper_;
      num_resynced_ = NumResynced();
    }
    for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
      halves_.push_back(Halves(bucket.id));
    }
    if (has_peers()) RETURN_IF_ERROR(AllocateWindows());
    for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
      ASSIGN_OR_RETURN(auto reducer, MakeReducer(bucket.id));
      reducers_.push_back(std::move(reducer));
      ASSIGN_OR_RETURN(auto publisher, MakePublisher(bucket.id));
      publishers_.push_back(std::move(publisher));
      if (!codes_deltas()) continue;
      ASSIGN_OR_RETURN(
          auto resync,
          Resync::Create(&context_, bucket.id,
                         resync_windows_.Of(ResyncTurn(bucket.id))));
      resyncs_.push_back(std::move(resync));
    }
    return absl::OkStatus();
  }

  void StartReduce(BucketId bucket, Step step) override {
    if (context_.gate.is_shut()) return;
    if (!has_peers()) {
      FailLater(reducers_[bucket.value()]->pipeline()->Start(step));
      return;
    }
    reduce_order_.Request(bucket, step);
    Enter(&reduce_order_, reducers_);
  }

  void StartPublish(BucketId bucket, Step step) override {
    if (context_.gate.is_shut()) return;
    if (!codes_weights()) {
      FailLater(publishers_[bucket.value()]->pipeline()->Start(step));
      return;
    }
    publish_order_.Request(bucket, step);
    Enter(&publish_order_, publishers_);
  }

  void StartBroadcast(NodeRank root) override {
    if (context_.gate.is_shut()) return;
    FailLater(broadcast_.Start(root));
  }

  void StartComparison() override {
    if (context_.gate.is_shut()) return;
    if (!keeper_.has_value()) return context_.gate.Submit(&compared_);
    keeper_->StartComparison();
  }

  void Cancel(absl::AnyInvocable<void() &&> done) override {
    Stop();
    context_.gate.WhenIdle(std::move(done));
  }

  ByteCounts byte_counts() const override {
    ByteCounts counts;
    const auto add = [&counts](const transport::Exchange& exchange) {
      const transport::ByteCounters& of_exchange = exchange.counters();
      counts.wire_sent += of_exchange.wire_sent;
      counts.wire_received += of_exchange.wire_received;
    };
    for (const auto* operations : {&reducers_, &publishers_}) {
      for (const auto& operation : *operations) {
        operation->pipeline()->ForEachExchange(add);
        counts.payload_sent += operation->pipeline()->payload_sent();
      }
    }
    for (const auto& resync : resyncs_) {
      resync->pipeline()->ForEachExchange(
          [&counts](const transport::Exchange& exchange) {
            counts.resync_sent += exchange.counters().wire_sent;
            counts.resync_received += exchange.counters().wire_received;
          });
    }
    if (keeper_.has_value()) {
      counts.heal_sent = keeper_->bytes_sent();
      counts.heal_received = keeper_->bytes_received();
    }
    for (const auto& exchange : broadcast_.exchanges()) {
      counts.broadcast_sent += exchange->counters().wire_sent;
      counts.broadcast_received += exchange->counters().wire_received;
    }
    return counts;
  }

  std::string WaitingFor() const override {
    return keeper_.has_value() ? keeper_->WaitingFor() : "";
  }

  PublishedState published() const override {
    if (!codes_deltas()) return {};
    return {.digest = context_.parts.published->digest(),
            .faults = context_.parts.published->faults(),
            .heals = context_.parts.published->heals()};
  }

  PathErrors Errors(layout::Path path, Step step) const override {
    PathErrors sum;
    if (context_.parts.plan == nullptr) return sum;
    const layout::MeterWindow window =
        context_.parts.plan->MeteredIn(path, step);
    sum.first = window.first;
    sum.tensors.resize(window.count);
    const Operations& operations =
        path == layout::Path::kGradients ? reducers_ : publishers_;
    for (const auto& operation : operations) operation->AddErrors(&sum);
    return sum;
  }

 private:
  using Operations = std::vector<std::unique_ptr<BucketOperation>>;

  bool has_peers() const {
    return context_.parts.layout->topology().num_nodes > 1;
  }
  bool codes_gradients() const {
    const layout::ExchangePlan* const plan = context_.parts.plan;
    return plan != nullptr && plan->quantizes_gradients();
  }
  bool Halves(BucketId bucket) const {
    const auto& halves = context_.parts.halves;
    return !codes_gradients() && halves != nullptr &&
           HalvingReducer::CanHalve(context_) &&
           halves(HalvingReducer::PartBytes(context_, bucket));
  }
  bool codes_weights() const {
    const layout::ExchangePlan* const plan = context_.parts.plan;
    return plan != nullptr && plan->quantizes_weights();
  }
  bool codes_deltas() const {
    return codes_weights() && context_.parts.plan->codes_deltas();
  }
  int64_t resync_steps() const {
    return context_.parts.plan->policy().resync_every_steps;
  }
  // Buckets that are compared in one step lie `resync_steps` apart, and no two
  // further apart than the windows are on their way: this many at once.
  int num_resync_windows() const {
    return static_cast<int>((num_windows_ - 1) / resync_steps()) + 1;
  }
  int ResyncTurn(BucketId bucket) const {
    return static_cast<int>(bucket.value() / resync_steps());
  }
  CollectiveObserver* observer() const { return context_.parts.observer; }

  // `choose` gives the codec's parameters, and what elements are without.
  template <typename Choose>
  void MakeCodecs(std::vector<std::unique_ptr<Codec>>* codecs,
                  const Choose& choose) {
    const Parts& parts = context_.parts;
    for (size_t i = 0; i < parts.layout->tensors().size(); ++i) {
      const auto [choice, unquantized] =
          choose(parts.plan->codecs(TensorId(static_cast<int32_t>(i))),
                 parts.layout->tensors()[i].dtype);
      codecs->push_back(MakeCodec(choice, unquantized, parts.kernels));
    }
  }

  absl::Status AllocateWindows() {
    const Parts& parts = context_.parts;
    int64_t reduce_bytes = 0;
    int64_t publish_bytes = 0;
    int64_t resync_bytes = 0;
    for (const layout::Bucket& bucket : parts.layout->buckets()) {
      reduce_bytes = std::max<int64_t>(
          reduce_bytes, codes_gradients()
                            ? CodedReducer::WindowBytes(context_, bucket.id)
                            : SumWindowElements(bucket.id) * sizeof(float));
      if (!codes_weights()) continue;
      publish_bytes =
          std::max(publish_bytes,
                   CodedPublisher::WindowBytes(context_, *coder_, bucket.id));
      resync_bytes =
          std::max(resync_bytes, Resync::WindowBytes(context_, bucket.id));
    }
    RETURN_IF_ERROR(
        reduce_windows_.Allocate(parts.device, num_windows_, reduce_bytes,
                                 "windows of buckets between nodes"));
    if (codes_weights()) {
      RETURN_IF_ERROR(publish_windows_.Allocate(parts.device, num_windows_,
                                                publish_bytes,
                                                "windows of encoded weights"));
    }
    if (codes_deltas()) {
      RETURN_IF_ERROR(resync_windows_.Allocate(
          parts.device, num_resync_windows(), resync_bytes,
          "windows of published weights to compare"));
    }
    if (!codes_gradients() && !codes_weights()) return absl::OkStatus();
    return AllocateScratch();
  }

  int64_t SumWindowElements(BucketId bucket) const {
    return halves_[bucket.value()]
               ? HalvingReducer::WindowElements(context_, bucket)
               : BucketReducer::WindowElements(context_, bucket);
  }

  absl::Status AllocateScratch() {
    const Parts& parts = context_.parts;
    const LongestChunk longest = FindLongestChunk(*parts.layout);
    const int64_t run = PadBytes(longest.run * sizeof(float));
    const int64_t chunk = codes_deltas() ? longest.chunk_bytes : 0;
    ASSIGN_OR_RETURN(scratch_, parts.device->AllocatePrivate(
                                   std::max<int64_t>(1, run + chunk) *
                                       context_.threads.size(),
                                   "runs before they are encoded"));
    std::span<std::byte> rest = scratch_->bytes();
    for (ThreadPointers& thread : context_.threads) {
      thread.scratch = AsFloats(rest.first(run));
      thread.chunk = rest.subspan(run, chunk);
      rest = rest.subspan(run + chunk);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<BucketOperation>> MakeReducer(
      BucketId bucket) {
    const std::span<std::byte> window = reduce_windows_.Of(bucket.value());
    if (codes_gradients()) {
      return CodedReducer::Create(&context_, bucket, window);
    }
    if (halves_[bucket.value()]) {
      return HalvingReducer::Create(&context_, bucket, AsFloats(window));
    }
    return BucketReducer::Create(&context_, bucket, AsFloats(window));
  }

  absl::StatusOr<std::unique_ptr<BucketOperation>> MakePublisher(
      BucketId bucket) {
    if (codes_weights()) {
      return CodedPublisher::Create(&context_, coder_.get(), bucket,
                                    publish_windows_.Of(bucket.value()));
    }
    return BucketPublisher::Create(&context_, bucket);
  }

  void Enter(ReduceOrder* order, const Operations& operations) {
    while (const std::optional<ReduceRequest> next = order->Enter()) {
      FailLater(
          operations[next->bucket.value()]->pipeline()->Start(next->step));
    }
  }

  // No byte of borrowed memory is touched by the transport afterwards, and no
  // task that ends is heard of.
  void Stop() {
    context_.gate.Shut();
    if (keeper_.has_value()) keeper_->Stop();
    for (const auto* operations : {&reducers_, &publishers_, &resyncs_}) {
      for (const auto& operation : *operations) operation->pipeline()->Cancel();
    }
    broadcast_.Cancel();
  }

  void FailLater(absl::Status status) {
    if (status.ok() || !failure_.ok()) return;
    failure_ = std::move(status);
    context_.gate.Submit(&fail_);
  }

  void OnBucketReduced(BucketId bucket, const Reduced& reduced) override {
    if (has_peers()) {
      reduce_order_.Leave(bucket);
      Enter(&reduce_order_, reducers_);
    }
    observer()->OnReduced(bucket, reduced);
  }

  void OnBucketPublished(BucketId bucket) override {
    const Step step = publishers_[bucket.value()]->pipeline()->step();
    if (codes_deltas() &&
        Resync::IsDue(context_.parts.plan->policy(), bucket, step)) {
      const absl::Status begun =
          resyncs_[bucket.value()]->pipeline()->Start(step);
      if (!begun.ok()) OnOperationFailed(begun);
      return;
    }
    Finish(bucket);
  }

  void OnBucketCompared(BucketId bucket) override {
    LogResync(bucket);
    Finish(bucket);
  }

  uint64_t NumResynced() const {
    return context_.parts.published
        ->heals()[static_cast<size_t>(HealKind::kResync)];
  }
  void LogResync(BucketId bucket) {
    const uint64_t before = std::exchange(num_resynced_, NumResynced());
    if (num_resynced_ == before || !context_.parts.log) return;
    context_.parts.log(absl::StrCat("a comparison of bucket ", bucket.value(),
                                    " put ", num_resynced_ - before,
                                    " chunks right"));
  }

  void OnAllCompared(const absl::Status& status) {
    if (!status.ok()) return OnOperationFailed(status);
    observer()->OnCompared();
  }

  void Finish(BucketId bucket) {
    if (codes_deltas()) context_.parts.published->Seal(bucket);
    if (codes_weights()) {
      publish_order_.Leave(bucket);
      Enter(&publish_order_, publishers_);
    }
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
  ReduceOrder reduce_order_;
  ReduceOrder publish_order_;  // of encoded weights; else each has its place
  Windows reduce_windows_;     // outlive the exchanges
  Windows publish_windows_;
  Windows resync_windows_;
  std::vector<bool> halves_;           // by bucket
  std::unique_ptr<ChunkCoder> coder_;  // null: weights go as they are
  std::unique_ptr<device::PrivateBuffer> scratch_;
  Operations reducers_;  // per bucket
  Operations publishers_;
  Operations resyncs_;  // delta mode only
  Broadcast broadcast_;
  absl::Status failure_;  // of a Start call, on its way to the observer
  EmptyTask compared_;
  EmptyTask fail_;
  uint64_t num_resynced_ = 0;          // chunks, when it was last looked at
  std::optional<ChunkKeeper> keeper_;  // delta mode only
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
