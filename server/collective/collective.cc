#include "server/collective/collective.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
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
#include "server/collective/gathered_weights.h"
#include "server/collective/halving_reducer.h"
#include "server/collective/owned_publisher.h"
#include "server/collective/owned_weights.h"
#include "server/collective/reduce_order.h"
#include "server/collective/resync.h"
#include "server/collective/value_coder.h"
#include "server/collective/verify/verifier.h"
#include "server/collective/windows.h"

namespace ballast::collective {
namespace {

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

class HierarchicalCollective final : public Collective,
                                     private OperationObserver {
 public:
  HierarchicalCollective(const Parts& parts, Generation generation)
      : context_(parts, generation, this),
        num_windows_(context_.num_windows()),
        reduce_order_(parts.layout->buckets().size(), num_windows_),
        publish_order_(parts.layout->buckets().size(), num_windows_),
        broadcast_(&context_),
        compared_(&context_.gate, [this] { observer()->OnCompared(); }),
        fail_(&context_.gate, [this] { OnOperationFailed(failure_); }) {}

  absl::Status Prepare() {
    if (gathers()) {
      gathered_before_ = context_.parts.gathered->wire();
      served_before_ = context_.parts.gathered->totals().payload_served;
    }
    MakeCodecsForWindows();
    if (codes_deltas() && has_peers()) {
      verifier_.emplace(&context_,
                        [this](BucketId bucket, const auto& reduced) {
                          observer()->OnReduced(bucket, reduced);
                        });
    }
    if (codes_deltas() && context_.parts.pulls != nullptr) {
      keeper_.emplace(&context_, [this](const absl::Status& status) {
        OnAllCompared(status);
      });
      context_.watch = &*keeper_;
      num_resynced_ = NumResynced();
    }
    if (has_peers()) RETURN_IF_ERROR(AllocateWindows());
    if (context_.may_change_codecs()) MakeCodecs(/*is_widest=*/false);
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

  // What Prepare allocates; nothing else is called.
  uint64_t WindowBytes() {
    if (!has_peers()) return 0;
    MakeCodecsForWindows();
    const Sizes sizes = FindSizes();
    const auto of = [](int num_windows, int64_t bytes) {
      return num_windows * PadBytes(std::max<int64_t>(bytes, 1));
    };
    return of(num_windows_, sizes.reduce) +
           (codes_weights() ? of(num_windows_, sizes.publish) : 0) +
           (codes_deltas() ? of(num_resync_windows(), sizes.resync) : 0) +
           (sizes.run + sizes.chunk) * context_.threads.size();
  }

  void StartReduce(BucketId bucket, Step step) override {
    if (context_.gate.is_shut()) return;
    if (!has_peers()) {
      FailLater(reducers_[bucket.value()]->pipeline()->Start(step));
      return;
    }
    reduce_order_.Request(bucket, step);
    Enter(&reduce_order_, reducers_);
    if (verifier_.has_value()) verifier_->Start(bucket);
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

  void StartBroadcast(NodeRank root, Step step) override {
    if (context_.gate.is_shut()) return;
    FailLater(broadcast_.Start(root, step));
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
    ByteCounts counts = of_replaced_;
    for (const auto* operations : {&reducers_, &publishers_}) {
      for (const auto& operation : *operations) {
        if (operation != nullptr) AddCounts(operation.get(), &counts);
      }
    }
    if (gathers()) {
      const transport::ByteCounters wire = context_.parts.gathered->wire();
      counts.wire_sent += wire.wire_sent - gathered_before_.wire_sent;
      counts.wire_received +=
          wire.wire_received - gathered_before_.wire_received;
      counts.payload_sent +=
          context_.parts.gathered->totals().payload_served - served_before_;
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
            .heals = context_.parts.published->heals(),
            .num_verified = context_.parts.published->num_verified()};
  }

  ExchangeTimes times() const override {
    return {
        .exchange_seconds = absl::ToDoubleSeconds(context_.exchanging.total()),
        .wire_seconds = absl::ToDoubleSeconds(context_.on_wire.total())};
  }

  void OnCommitted(int64_t optimizer_step) override {
    context_.parts.optimizer_step = optimizer_step;
  }
  std::optional<double> ResidualNorm() const override {
    if (!codes(layout::Path::kGradients) ||
        !context_.parts.plan->feeds_back()) {
      return std::nullopt;
    }
    double norm2 = 0;
    for (const auto& reducer : reducers_) {
      if (reducer != nullptr) norm2 += reducer->residual_norm2();
    }
    if (!std::isfinite(norm2)) return std::nullopt;
    return std::sqrt(norm2);
  }

  int num_wider(layout::Path path) const override {
    return codes(path) ? context_.parts.plan->num_wider(path) : 0;
  }

  absl::Status Revise(std::span<const layout::CodecChange> changes) override {
    if (context_.gate.is_shut() || changes.empty()) return absl::OkStatus();
    if (context_.parts.plan == nullptr) {
      return absl::DataLossError("other codecs for a job that has none");
    }
    std::set<std::pair<layout::Path, BucketId>> buckets;
    for (const layout::CodecChange& change : changes) {
      RETURN_IF_ERROR(context_.parts.plan->Apply(change));
      const layout::TensorPlace& place =
          context_.parts.layout->place(change.tensor);
      for (int32_t b = place.first_bucket; b <= place.last_bucket; ++b) {
        buckets.emplace(change.path, b);
      }
    }
    // They hold codecs, and exchanges of the identities that come again.
    for (const auto& [path, bucket] : buckets) {
      auto& operation = operations(path)[bucket.value()];
      AddCounts(operation.get(), &of_replaced_);
      operation.reset();
    }
    for (const layout::CodecChange& change : changes) {
      RemakeCodec(change.path, change.tensor, /*is_widest=*/false);
    }
    for (const auto& [path, bucket] : buckets) {
      ASSIGN_OR_RETURN(operations(path)[bucket.value()],
                       MakeOperation(path, bucket));
    }
    return absl::OkStatus();
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
    for (const auto& operation : operations) {
      if (operation != nullptr) operation->AddErrors(&sum);
    }
    return sum;
  }

 private:
  using Operations = std::vector<std::unique_ptr<BucketOperation>>;

  bool has_peers() const { return context_.has_peers(); }
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
    return plan != nullptr && plan->quantizes_weights() && !gathers() &&
           !plan->policy().gathers_weights;
  }
  bool gathers() const { return context_.parts.gathered != nullptr; }
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

  bool codes(layout::Path path) const {
    return path == layout::Path::kGradients ? codes_gradients()
                                            : codes_weights();
  }
  Operations& operations(layout::Path path) {
    return path == layout::Path::kGradients ? reducers_ : publishers_;
  }

  // Windows are for the widest codecs that may come.
  void MakeCodecsForWindows() {
    if (codes_weights()) {
      coder_ = codes_deltas() ? MakeDeltaCoder(&context_)
                              : MakeValueCoder(&context_);
    }
    for (const layout::Bucket& bucket : context_.parts.layout->buckets()) {
      halves_.push_back(Halves(bucket.id));
    }
    MakeCodecs(/*is_widest=*/context_.may_change_codecs());
  }

  void MakeCodecs(bool is_widest) {
    for (const layout::Path path : layout::kPaths) {
      if (!codes(path)) continue;
      const size_t num_tensors = context_.parts.layout->tensors().size();
      context_.codecs(path).resize(num_tensors);
      context_.narrower_codecs(path).resize(num_tensors);
      for (size_t i = 0; i < num_tensors; ++i) {
        RemakeCodec(path, TensorId(static_cast<int32_t>(i)), is_widest);
      }
    }
  }

  // Nothing holds the old one.
  void RemakeCodec(layout::Path path, TensorId tensor, bool is_widest) {
    const Parts& parts = context_.parts;
    const kernels::DType unquantized = path == layout::Path::kGradients
                                           ? kernels::DType::kFloat32
                                           : parts.layout->tensor(tensor).dtype;
    const layout::CodecChoice& choice = parts.plan->codecs(tensor).on(path);
    context_.codecs(path)[tensor.value()] =
        MakeCodec(is_widest ? choice.With(layout::CodecId::kNone) : choice,
                  unquantized, parts.kernels);
    const auto narrower = parts.plan->NarrowerChoice(path, tensor);
    context_.narrower_codecs(path)[tensor.value()] =
        narrower.has_value() ? MakeCodec(*narrower, unquantized, parts.kernels)
                             : nullptr;
  }

  absl::StatusOr<std::unique_ptr<BucketOperation>> MakeOperation(
      layout::Path path, BucketId bucket) {
    return path == layout::Path::kGradients ? MakeReducer(bucket)
                                            : MakePublisher(bucket);
  }

  static void AddCounts(BucketOperation* operation, ByteCounts* counts) {
    operation->pipeline()->ForEachExchange(
        [counts](const transport::Exchange& exchange) {
          counts->wire_sent += exchange.counters().wire_sent;
          counts->wire_received += exchange.counters().wire_received;
        });
    counts->payload_sent += operation->pipeline()->payload_sent();
  }

  // Bytes of one window of each kind, and of what each thread has beside them.
  struct Sizes {
    int64_t reduce = 0;
    int64_t publish = 0;
    int64_t resync = 0;
    int64_t run = 0;
    int64_t chunk = 0;
  };
  Sizes FindSizes() const {
    const Parts& parts = context_.parts;
    Sizes sizes;
    for (const layout::Bucket& bucket : parts.layout->buckets()) {
      sizes.reduce = std::max<int64_t>(
          sizes.reduce, codes_gradients()
                            ? CodedReducer::WindowBytes(context_, bucket.id)
                            : SumWindowElements(bucket.id) * sizeof(float));
      if (!codes_weights()) continue;
      sizes.publish =
          std::max(sizes.publish,
                   CodedPublisher::WindowBytes(context_, *coder_, bucket.id));
      if (!codes_deltas()) continue;
      sizes.resync =
          std::max(sizes.resync, Resync::WindowBytes(context_, bucket.id));
    }
    if (codes_gradients() || codes_weights()) {
      const LongestChunk longest = FindLongestChunk(*parts.layout);
      sizes.run = PadBytes(longest.run * sizeof(float));
      sizes.chunk = codes_deltas() ? longest.chunk_bytes : 0;
    }
    return sizes;
  }

  absl::Status AllocateWindows() {
    const Parts& parts = context_.parts;
    const Sizes sizes = FindSizes();
    RETURN_IF_ERROR(
        reduce_windows_.Allocate(parts.device, num_windows_, sizes.reduce,
                                 "windows of buckets between nodes"));
    if (codes_weights()) {
      RETURN_IF_ERROR(publish_windows_.Allocate(parts.device, num_windows_,
                                                sizes.publish,
                                                "windows of encoded weights"));
    }
    if (codes_deltas()) {
      RETURN_IF_ERROR(resync_windows_.Allocate(
          parts.device, num_resync_windows(), sizes.resync,
          "windows of published weights to compare"));
    }
    return AllocateScratch(sizes);
  }

  int64_t SumWindowElements(BucketId bucket) const {
    return halves_[bucket.value()]
               ? HalvingReducer::WindowElements(context_, bucket)
               : BucketReducer::WindowElements(context_, bucket);
  }

  absl::Status AllocateScratch(const Sizes& sizes) {
    if (sizes.run + sizes.chunk == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(scratch_,
                     context_.parts.device->AllocatePrivate(
                         (sizes.run + sizes.chunk) * context_.threads.size(),
                         "runs before they are encoded"));
    std::span<std::byte> rest = scratch_->bytes();
    for (ThreadPointers& thread : context_.threads) {
      thread.scratch = AsFloats(rest.first(sizes.run));
      thread.chunk = rest.subspan(sizes.run, sizes.chunk);
      rest = rest.subspan(sizes.run + sizes.chunk);
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
    if (gathers()) {
      return std::make_unique<OwnedPublisher>(&context_, context_.parts.owned,
                                              bucket);
    }
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
      for (const auto& operation : *operations) {
        // Null where Revise failed.
        if (operation != nullptr) operation->pipeline()->Cancel();
      }
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
    if (verifier_.has_value()) return verifier_->Report(bucket, reduced);
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
  ByteCounts of_replaced_;  // operations that Revise made anew
  // As this generation began.
  transport::ByteCounters gathered_before_;
  uint64_t served_before_ = 0;
  absl::Status failure_;  // of a Start call, on its way to the observer
  EmptyTask compared_;
  EmptyTask fail_;
  uint64_t num_resynced_ = 0;          // chunks, when it was last looked at
  std::optional<ChunkKeeper> keeper_;  // delta mode only
  std::optional<Verifier> verifier_;   // likewise, with several nodes
};

}  // namespace

uint64_t Collective::WindowBytes(const Parts& parts) {
  return HierarchicalCollective(parts, Generation()).WindowBytes();
}

absl::StatusOr<std::unique_ptr<Collective>> Collective::Create(
    const Parts& parts, Generation generation) {
  RETURN_IF_ERROR(CheckParts(parts));
  auto collective = std::make_unique<HierarchicalCollective>(parts, generation);
  RETURN_IF_ERROR(collective->Prepare());
  return collective;
}

}  // namespace ballast::collective
