#include "server/engine/job_engine.h"

#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/hyper_parameters.h"
#include "server/base/failpoint.h"
#include "server/engine/contributions.h"
#include "server/engine/error_votes.h"
#include "server/engine/exact_estimate.h"
#include "server/engine/group_values.h"
#include "server/engine/step_clock.h"
#include "server/engine/step_metrics.h"
#include "server/engine/step_summary.h"

namespace ballast::engine {
namespace {

enum class BucketStage {
  kCollecting,
  kReducing,
  kReduced,
  kUpdating,
  kPublishing,
};

// The step that the workers compute, up to its commit.
struct OpenStep {
  OpenStep(Generation generation, Step step, absl::Time now)
      : generation(generation), step(step), clock(now), progressed(now) {}

  Generation generation;
  Step step;
  int buckets_reduced = 0;
  kernels::ExactSum norm2;
  bool is_finite = true;
  bool has_voted = false;
  int heal_round = 0;
  bool is_comparing = false;  // before it votes again
  StepClock clock;
  absl::Time progressed;  // the last contribution
};

// The committed step that is being carried out.
struct CommittedStep {
  StepSummary summary;
  StepClock clock;
  bool is_repeat = false;  // it was all published here before
  int buckets_updated = 0;
  int buckets_published = 0;
};

// What a commit orders.
struct Orders {
  std::vector<kernels::StepScalars> scalars;
  std::vector<layout::CodecChange> codec_changes;
};

absl::StatusOr<Orders> ParseOrders(const v1::Commit& commit,
                                   size_t num_groups) {
  auto scalars = ParseScalars(commit, num_groups);
  if (!scalars.ok()) return scalars.status();
  auto codec_changes = ParseCodecChanges(commit);
  if (!codec_changes.ok()) return codec_changes.status();
  return Orders{*std::move(scalars), *std::move(codec_changes)};
}

class JobEngineImpl final : public JobEngine {
 public:
  explicit JobEngineImpl(const Parts& parts)
      : parts_(parts),
        num_buckets_(static_cast<int>(parts.layout->buckets().size())),
        contributions_(parts.layout->topology().local_world_size, num_buckets_,
                       parts.layout->topology().FirstRank(parts.node)),
        stages_(num_buckets_),
        estimate_(parts.exact_bytes),
        metrics_(parts.metrics, parts.transport_name) {
    for (const layout::TensorSpec& tensor : parts.layout->tensors()) {
      if (!tensor.trainable) continue;
      const int64_t id = &tensor - parts.layout->tensors().data();
      weight_bytes_ += parts.layout->places()[id].num_elements *
                       kernels::SizeOf(tensor.dtype);
    }
  }

  void Start(Generation generation, Step open_step,
             collective::Collective* collective) override {
    Begin(generation, open_step, collective);
    TakeBytes();  // of the initial weights
    OpenNext(generation, open_step);
  }

  absl::Status GoOn(Generation generation, const v1::Commit& commit,
                    bool is_loaded,
                    collective::Collective* collective) override {
    const auto orders = ParseOrders(commit, commit.groups_size());
    if (!orders.ok()) return orders.status();
    const Step step(commit.step());
    Begin(generation, step, collective);
    open_.emplace(generation, step, parts_.clock->Now());
    Apply(commit, *orders, is_loaded);
    return absl::OkStatus();
  }

  void Adopt(Generation generation, const v1::Commit& commit,
             collective::Collective* collective) override {
    Begin(generation, Step(commit.step()), collective);
    adopted_ = commit;
    OpenNext(generation, Step(commit.step()));
    TryVote();
  }

  void Suspend() override {
    if (collective_ != nullptr) TakeBytes();
    collective_ = nullptr;
    is_suspended_ = true;
  }

  void RestoreErrors(Step step, v1::PathErrors errors) override {
    restored_errors_.emplace(step, std::move(errors));
  }
  const v1::PathErrors& published_errors() const override {
    return published_errors_;
  }

  void OnPushed(LocalRank rank, BucketId bucket) override {
    if (!IsOpen() || !contributions_.AddPush(rank, bucket)) return Stray();
    OnContribution();
    BALLAST_FAILPOINT("engine.pushed");
    TryReduce(bucket);
    if (adopted_.has_value()) TryAdopt();
  }

  void OnStepInput(LocalRank rank, std::span<const proto::GroupValues> groups,
                   std::string cursor) override {
    if (!IsOpen() ||
        !contributions_.AddInput(rank, groups, std::move(cursor))) {
      return Stray();
    }
    OnContribution();
    TryVote();
  }

  void OnStepInputRefused(LocalRank rank, const absl::Status& why) override {
    if (!IsOpen() || !contributions_.AddRefusal(rank, why)) return Stray();
    OnContribution();
    TryVote();
  }

  void OnReduced(BucketId bucket, const collective::Reduced& reduced) override {
    if (!IsAt(bucket, BucketStage::kReducing)) return Stray();
    BALLAST_FAILPOINT("engine.reduced");
    stages_[bucket.value()] = BucketStage::kReduced;
    open_->norm2.Merge(reduced.norm2);
    open_->is_finite = open_->is_finite && reduced.finite;
    ++open_->buckets_reduced;
    TryVote();
  }

  void OnCommit(const v1::Commit& commit) override {
    if (!IsVotedOn(commit.step())) return Stray();
    CarryOutCommit(commit);
  }

  void OnAbort(const v1::Abort& abort) override {
    if (!IsVotedOn(abort.step())) return Stray();
    BALLAST_FAILPOINT("engine.aborted");
    if (BALLAST_SABOTAGED("engine.update_before_commit")) UpdateUncommitted();
    ++counts_.aborted;
    metrics_.OnAborted();
    TakeBytes();
    collective_ = nullptr;
    parts_.workers->Aborted(open_->step, Generation(abort.next_generation()),
                            WhyAborted(abort));
  }

  void OnHeal(const v1::Heal& heal) override {
    if (!IsVotedOn(heal.step())) return Stray();
    open_->heal_round = heal.round();
    open_->is_comparing = true;
    collective_->StartComparison();
  }

  void OnCompared() override {
    if (!IsOpen() || !open_->is_comparing) return Stray();
    open_->is_comparing = false;
    TakeBytes();
    parts_.members->CastVote(MakeVote());
  }

  void OnUpdated(BucketId bucket) override {
    if (updates_in_flight_ > 0) --updates_in_flight_;
    if (is_suspended_) return;
    if (!IsAt(bucket, BucketStage::kUpdating)) return Stray();
    BALLAST_FAILPOINT("engine.updated");
    stages_[bucket.value()] = BucketStage::kPublishing;
    if (++committed_->buckets_updated == num_buckets_) {
      committed_->clock.OnUpdated(parts_.clock->Now());
    }
    collective_->StartPublish(bucket, committed_->summary.step);
  }

  void OnPublished(BucketId bucket) override {
    if (!IsAt(bucket, BucketStage::kPublishing)) return Stray();
    BecomePublished(bucket);
  }

  void OnBroadcast() override { Stray(); }

  // The gradients held the weights: only now may they be overwritten.
  void OnLoaded() override {
    if (!committed_.has_value() || !committed_->summary.loaded) return Stray();
    BALLAST_FAILPOINT("engine.loaded");
    committed_->clock.OnUpdated(parts_.clock->Now());
    ConsumeAll();
    PublishAll();
  }

  void OnFailed(absl::Status status) override {
    if (collective_ != nullptr) TakeBytes();
    Fail(absl::Status(status.code(), absl::StrCat("node ", parts_.node.value(),
                                                  " cannot exchange buckets: ",
                                                  status.message())));
  }

  void Stop() override { is_stopped_ = true; }
  int updates_in_flight() const override { return updates_in_flight_; }

  Step open_step() const override {
    return open_.has_value() ? open_->step : Step();
  }
  WeightVersion weight_version() const override { return published_version_; }
  bool is_collected() const override { return contributions_.is_complete(); }
  bool is_idle() const override {
    return !committed_.has_value() && contributions_.is_empty();
  }
  Counts counts() const override { return counts_; }
  const StepSummary& last_summary() const override { return last_summary_; }
  const v1::ErrorReport& last_errors(layout::Path path) const override {
    return reports_[static_cast<size_t>(path)];
  }

  double exact_ratio() const override { return estimate_.ratio(); }
  std::optional<double> residual_norm() const override {
    return residual_norm_;
  }

  std::string WaitingFor(absl::Time now) const override {
    if (!IsOpen() || committed_.has_value() || open_->has_voted) return "";
    std::string what = contributions_.Missing(parts_.rank_name);
    if (what.empty()) {
      if (parts_.layout->topology().num_nodes == 1) return "";
      what = absl::StrCat("other nodes have not sent ",
                          num_buckets_ - open_->buckets_reduced, " of ",
                          num_buckets_, " buckets");
    }
    return absl::StrCat(what, " of step ", open_->step.value(), " for ",
                        absl::FormatDuration(absl::Trunc(
                            now - open_->progressed, absl::Milliseconds(100))));
  }

 private:
  bool IsOpen() const {
    return open_.has_value() && collective_ != nullptr && !is_stopped_;
  }
  bool IsAt(BucketId bucket, BucketStage stage) const {
    return IsOpen() && bucket.value() >= 0 && bucket.value() < num_buckets_ &&
           stages_[bucket.value()] == stage;
  }
  bool IsVotedOn(int64_t step) const {
    return IsOpen() && open_->has_voted && !open_->is_comparing &&
           open_->step.value() == step;
  }
  void Stray() { ++counts_.strays; }

  void Begin(Generation generation, Step step,
             collective::Collective* collective) {
    collective_ = collective;
    is_suspended_ = false;
    adopted_.reset();
    committed_.reset();
    bytes_taken_ = {};
    times_taken_ = {};
    // Of the version that an earlier life published, and this one did not.
    if (restored_errors_.has_value() &&
        last_summary_.step < restored_errors_->first &&
        restored_errors_->first == Step(step.value() - 1)) {
      published_errors_ = restored_errors_->second;
    }
    published_version_ = WeightVersion(step.value() - 1);
    stages_.assign(num_buckets_, BucketStage::kCollecting);
    metrics_.OnGeneration(generation);
  }

  void CarryOutCommit(const v1::Commit& commit) {
    const auto orders = ParseOrders(commit, contributions_.groups().size());
    if (!orders.ok()) return Fail(orders.status());
    if (commit.rank0_cursor().size() > proto::kMaxCursorBytes) {
      return Fail(absl::DataLossError(absl::StrCat(
          "the commit of step ", commit.step(), " has a cursor of rank 0 of ",
          commit.rank0_cursor().size(), " bytes, at most ",
          proto::kMaxCursorBytes, " are possible")));
    }
    BALLAST_FAILPOINT("engine.committed");
    const absl::Status recorded = Record(commit);
    if (!recorded.ok()) return Fail(recorded);
    BALLAST_FAILPOINT("engine.recorded");
    Apply(commit, *orders, /*is_loaded=*/false);
  }

  // A commit that is recorded.
  void Apply(const v1::Commit& commit, const Orders& orders, bool is_loaded) {
    // Carried out before, and maybe told: what was told stays.
    const bool is_repeat = open_->step <= last_summary_.step;
    StepSummary summary =
        is_repeat ? last_summary_ : SummaryOf(commit, open_->generation);
    if (!is_repeat) {
      TakeResidualNorm(commit, &summary);
      TakeWider(layout::Path::kGradients, &summary);
    }
    // All buckets are reduced here, and those of the step before published:
    // nothing is on its way.
    const absl::Status revised = collective_->Revise(orders.codec_changes);
    if (!revised.ok()) return Fail(revised);
    if (!is_repeat) TakeWider(layout::Path::kWeights, &summary);
    collective_->OnCommitted(commit.optimizer_step());
    if (counted_step_ < open_->step) {
      metrics_.OnCodecChanges(commit, *collective_);
    }
    committed_.emplace(CommittedStep{.summary = std::move(summary),
                                     .clock = open_->clock,
                                     .is_repeat = is_repeat});
    committed_->clock.OnCommitted(parts_.clock->Now());
    CountCommit();
    if (!is_repeat) published_errors_.Clear();
    if (!commit.skipped()) {
      for (const layout::Path path : layout::kPaths) {
        reports_[static_cast<size_t>(path)] = ReportOf(commit, path);
      }
    }
    stages_.assign(num_buckets_, BucketStage::kUpdating);
    parts_.workers->Committed(committed_->summary, commit.rank0_cursor());
    BALLAST_FAILPOINT("engine.told");
    OpenNext(open_->generation, open_->step.next());
    if (commit.load() != 0 && is_loaded) {
      ConsumeAll();
      PublishAll();
    } else if (commit.load() != 0) {
      parts_.loads->StartLoad(
          committed_->summary.step,
          commit.load() == static_cast<uint32_t>(proto::Load::kResetState));
    } else {
      CarryOut(commit.skipped(), orders.scalars);
    }
  }

  void CountCommit() {
    if (committed_->summary.step <= counted_step_) return;
    counted_step_ = committed_->summary.step;
    ++counts_.committed;
    if (committed_->summary.skipped) ++counts_.skipped;
    if (committed_->summary.loaded) ++counts_.loaded;
  }

  void OpenNext(Generation generation, Step step) {
    open_.emplace(generation, step, parts_.clock->Now());
    contributions_.Clear();
    parts_.workers->Open(generation, step);
  }

  void OnContribution() {
    const absl::Time now = parts_.clock->Now();
    open_->progressed = now;
    open_->clock.OnContribution(now);
    if (contributions_.is_complete()) open_->clock.OnCollected(now);
  }

  // The reduced gradient of the last step is needed until it is published.
  void TryReduce(BucketId bucket) {
    if (adopted_.has_value() ||
        stages_[bucket.value()] != BucketStage::kCollecting ||
        !contributions_.IsCollected(bucket)) {
      return;
    }
    stages_[bucket.value()] = BucketStage::kReducing;
    collective_->StartReduce(bucket, open_->step);
  }

  // All buckets reduced implies that the step before is published.
  void TryVote() {
    if (adopted_.has_value()) return TryAdopt();
    if (open_->has_voted || open_->buckets_reduced < num_buckets_ ||
        !contributions_.has_all_inputs()) {
      return;
    }
    open_->has_voted = true;
    open_->clock.OnReduced(parts_.clock->Now());
    BALLAST_FAILPOINT("engine.vote");
    parts_.members->CastVote(MakeVote());
  }

  // The reduced gradients are there from before; the cursors come again.
  void TryAdopt() {
    if (!contributions_.is_complete()) return;
    const v1::Commit commit = *std::exchange(adopted_, std::nullopt);
    open_->clock.OnReduced(parts_.clock->Now());
    CarryOutCommit(commit);
  }

  v1::Vote MakeVote() const {
    v1::Vote vote;
    vote.set_step(open_->step.value());
    vote.set_published_digest(collective_->published().digest);
    *vote.mutable_gradient_errors() = ToPathErrors(
        collective_->Errors(layout::Path::kGradients, open_->step));
    *vote.mutable_weight_errors() = published_errors_;
    vote.set_heal_round(open_->heal_round);
    const absl::Status agreement = contributions_.Agreement();
    if (!agreement.ok()) {
      vote.set_refusal_code(static_cast<int>(agreement.code()));
      vote.set_refusal_text(std::string(agreement.message()));
      return vote;
    }
    for (uint64_t limb : open_->norm2.limbs()) vote.add_norm2_limbs(limb);
    vote.set_non_finite(!open_->is_finite);
    if (parts_.node == NodeRank(0)) {
      vote.set_rank0_cursor(contributions_.cursor(LocalRank(0)));
    }
    for (const proto::GroupValues& group : contributions_.groups()) {
      *vote.add_groups() = ToStepGroup(group);
    }
    return vote;
  }

  // Before codecs change: of those that this step crossed by.
  void TakeResidualNorm(const v1::Commit& commit, StepSummary* summary) {
    if (commit.skipped()) return;  // it stays as it was
    residual_norm_ = collective_->ResidualNorm();
    summary->quality[static_cast<size_t>(layout::Path::kGradients)]
        .residual_norm = residual_norm_;
    if (residual_norm_.has_value()) metrics_.OnResidualNorm(*residual_norm_);
  }
  void TakeWider(layout::Path path, StepSummary* summary) const {
    const int wider = collective_->num_wider(path);
    summary->quality[static_cast<size_t>(path)].num_wider = wider;
    summary->fallbacks += wider;
  }

  absl::Status Record(const v1::Commit& commit) {
    optimizer::Scalars scalars;
    scalars.generation = open_->generation;
    scalars.step = open_->step;
    scalars.optimizer_step = commit.optimizer_step();
    for (const v1::StepGroup& group : commit.groups()) {
      scalars.groups.push_back(ToHyperParameters(group));
    }
    scalars.cursors = contributions_.TakeCursors();
    return parts_.state->Commit(std::move(scalars));
  }

  void CarryOut(bool skipped, std::span<const kernels::StepScalars> scalars) {
    ConsumeAll();
    BALLAST_FAILPOINT("engine.consumed");
    if (BALLAST_SABOTAGED("engine.publish_before_complete")) {
      for (int b = 0; b < num_buckets_; ++b) {
        parts_.workers->Published(BucketId(b), committed_->summary.generation,
                                  committed_->summary.step);
      }
    }
    if (skipped || num_buckets_ == 0) {
      committed_->clock.OnUpdated(parts_.clock->Now());
      return PublishAll();
    }
    const absl::Status begun = parts_.optimizer->BeginStep(
        committed_->summary.generation, committed_->summary.step, scalars);
    if (!begun.ok()) return Fail(begun);
    for (int b = 0; b < num_buckets_; ++b) {
      ++updates_in_flight_;
      parts_.optimizer->StartUpdate(BucketId(b));
    }
  }

  // What an engine has done by now that starts to update with its vote; only
  // for negative tests.
  void UpdateUncommitted() {
    std::vector<kernels::StepScalars> scalars;
    for (const proto::GroupValues& values : contributions_.groups()) {
      scalars.push_back(kernels::PrepareScalars(
          parts_.state->kind(), ToHyperParameters(ToStepGroup(values)),
          parts_.state->scalars().optimizer_step + 1, /*clip=*/1));
    }
    if (!parts_.optimizer->BeginStep(open_->generation, open_->step, scalars)
             .ok()) {
      return;
    }
    for (int b = 0; b < num_buckets_; ++b) {
      ++updates_in_flight_;
      parts_.optimizer->StartUpdate(BucketId(b));
    }
  }

  void ConsumeAll() {
    for (int b = 0; b < num_buckets_; ++b) {
      parts_.workers->Consumed(BucketId(b), committed_->summary.generation,
                               committed_->summary.step);
    }
  }

  // What has changed by no update.
  void PublishAll() {
    for (int b = 0; b < num_buckets_; ++b) BecomePublished(BucketId(b));
    if (num_buckets_ == 0) FinishStep();
  }

  // A worker that sees the last bucket published reads the whole record, so
  // the record comes first.
  void BecomePublished(BucketId bucket) {
    const Generation generation = committed_->summary.generation;
    const Step step = committed_->summary.step;
    BALLAST_FAILPOINT("engine.publish");
    stages_[bucket.value()] = BucketStage::kCollecting;
    if (++committed_->buckets_published == num_buckets_) FinishStep();
    parts_.workers->Published(bucket, generation, step);
    BALLAST_FAILPOINT("engine.published");
    TryReduce(bucket);
  }

  void FinishStep() {
    const absl::Time now = parts_.clock->Now();
    TakeBytes();
    committed_->clock.OnPublished(now);
    if (committed_->is_repeat) return FinishRepeat(now);
    last_summary_ = committed_->summary;
    last_summary_.wire_bytes_sent = carried_.wire_sent;
    last_summary_.wire_bytes_received = carried_.wire_received;
    last_summary_.payload_bytes = carried_.payload_sent;
    if (!last_summary_.skipped && !last_summary_.loaded) {
      const collective::ExchangeTimes times = collective_->times();
      estimate_.Add(last_summary_.payload_bytes,
                    times.wire_seconds - times_taken_.wire_seconds,
                    times.exchange_seconds - times_taken_.exchange_seconds);
      times_taken_ = times;
      metrics_.OnExactRatio(estimate_.ratio());
      published_errors_ =
          restored_errors_.has_value() &&
                  restored_errors_->first == last_summary_.step
              ? restored_errors_->second
              : ToPathErrors(collective_->Errors(layout::Path::kWeights,
                                                 last_summary_.step));
    }
    last_summary_.seconds = committed_->clock.seconds();
    last_summary_.stage_seconds = committed_->clock.stage_seconds();
    last_summary_.fallbacks +=
        static_cast<uint32_t>(std::exchange(carried_heals_, 0));
    carried_ = {};
    published_version_ = last_summary_.weight_version;
    committed_.reset();
    open_->clock.OnOpened(now);
    const uint64_t num_ranks = parts_.layout->topology().local_world_size;
    metrics_.OnFinished(last_summary_, num_ranks * weight_bytes_,
                        last_summary_.skipped ? 0 : weight_bytes_);
    parts_.workers->Finished(last_summary_);
  }

  void FinishRepeat(absl::Time now) {
    published_version_ = last_summary_.weight_version;
    committed_.reset();
    open_->clock.OnOpened(now);
    parts_.workers->Finished(last_summary_);
  }

  // Bytes since the last call. What an aborted step moved is told with the
  // next committed one; bytes of buckets that were pushed early count for the
  // step during which they moved; those of initial weights for none.
  void TakeBytes() {
    const collective::ByteCounts now = collective_->byte_counts();
    carried_.wire_sent += now.wire_sent - bytes_taken_.wire_sent;
    carried_.wire_received += now.wire_received - bytes_taken_.wire_received;
    carried_.payload_sent += now.payload_sent - bytes_taken_.payload_sent;
    metrics_.OnBroadcast(
        now.broadcast_sent - bytes_taken_.broadcast_sent,
        now.broadcast_received - bytes_taken_.broadcast_received);
    metrics_.OnResync(now.resync_sent - bytes_taken_.resync_sent,
                      now.resync_received - bytes_taken_.resync_received);
    metrics_.OnHealBytes(now.heal_sent - bytes_taken_.heal_sent,
                         now.heal_received - bytes_taken_.heal_received);
    bytes_taken_ = now;
    TakeChunks(collective_->published());
  }

  void TakeChunks(const collective::PublishedState& published) {
    metrics_.OnPublishedChunks(published);
    const uint64_t healed = counts_.chunks_healed;
    counts_.chunks_bad = Sum(published.faults);
    // What was only on its way when links were lost was not damaged.
    counts_.chunks_healed =
        Sum(published.heals) -
        published.heals[static_cast<size_t>(collective::HealKind::kRelink)];
    carried_heals_ += counts_.chunks_healed - healed;
  }
  template <typename Counts>
  static uint64_t Sum(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  }

  void Fail(const absl::Status& why) {
    if (is_stopped_) return;
    is_stopped_ = true;
    parts_.members->Leave(why);
  }

  const Parts parts_;
  const int num_buckets_;
  uint64_t weight_bytes_ = 0;    // of trainable tensors, and of one gradient
  Contributions contributions_;  // to the open step
  collective::Collective* collective_ = nullptr;  // null between generations
  std::vector<BucketStage> stages_;               // by bucket
  std::optional<OpenStep> open_;
  std::optional<CommittedStep> committed_;
  collective::ByteCounts bytes_taken_;
  collective::ByteCounts carried_;
  uint64_t carried_heals_ = 0;
  collective::ExchangeTimes times_taken_;
  ExactEstimate estimate_;
  std::optional<double> residual_norm_;
  WeightVersion published_version_;
  Counts counts_;
  StepSummary last_summary_;
  // Of the weights that are published, for the vote on the step that they are
  // used in; an abort repeats the vote.
  v1::PathErrors published_errors_;
  std::array<v1::ErrorReport, layout::kNumPaths> reports_;
  StepMetrics metrics_;
  // Of weights that an earlier life published.
  std::optional<std::pair<Step, v1::PathErrors>> restored_errors_;
  std::optional<v1::Commit> adopted_;  // of the open step, not yet recorded
  Step counted_step_;                  // the last one in `counts_`
  int updates_in_flight_ = 0;
  bool is_suspended_ = false;
  bool is_stopped_ = false;
};

}  // namespace

absl::Status WhyAborted(const v1::Abort& abort) {
  const auto code = static_cast<absl::StatusCode>(abort.code());
  return code == absl::StatusCode::kOk ? absl::AbortedError(abort.text())
                                       : absl::Status(code, abort.text());
}

std::unique_ptr<JobEngine> JobEngine::Create(const Parts& parts) {
  return std::make_unique<JobEngineImpl>(parts);
}

}  // namespace ballast::engine
