#include "server/engine/step_metrics.h"

namespace ballast::engine {
namespace {

using metrics::Family;

constexpr std::array<std::string_view, kNumStages - 1> kStageNames = {
    "collect", "reduce", "vote", "update", "publish"};

// By collective::ChunkFault.
constexpr std::array<std::string_view, collective::kNumChunkFaults>
    kFaultNames = {"copy", "reference", "result", "resync", "vote", "verify"};
// By collective::HealKind.
constexpr std::array<std::string_view, collective::kNumHealKinds> kHealNames = {
    "owner", "member", "vote", "resync", "relink"};

}  // namespace

StepMetrics::StepMetrics(metrics::JobMetrics* job, std::string_view transport)
    : job_(job) {
  if (job == nullptr) return;
  committed_ = job->counter(Family::kSteps, {"committed"});
  skipped_ = job->counter(Family::kSteps, {"skipped"});
  aborted_ = job->counter(Family::kSteps, {"aborted"});
  waited_ = job->counter(Family::kStragglerWait);
  nonfinite_ = job->counter(Family::kNonfiniteValues, {"gradient"});
  pushed_ = job->counter(Family::kExchangePayloadBytes, {"pushed"});
  published_ = job->counter(Family::kExchangePayloadBytes, {"published"});
  wire_sent_ = job->counter(Family::kExchangeWireBytes, {transport, "sent"});
  wire_received_ =
      job->counter(Family::kExchangeWireBytes, {transport, "received"});
  broadcast_sent_ = job->counter(Family::kExchangeBroadcastBytes, {"sent"});
  broadcast_received_ =
      job->counter(Family::kExchangeBroadcastBytes, {"received"});
  resync_sent_ = job->counter(Family::kExchangeResyncBytes, {"sent"});
  resync_received_ = job->counter(Family::kExchangeResyncBytes, {"received"});
  for (size_t i = 0; i < faults_.size(); ++i) {
    faults_[i] = job->counter(Family::kWeightChunksBad, {kFaultNames[i]});
  }
  verified_ = job->counter(Family::kWeightChunksVerified);
  for (const layout::Path path : layout::kPaths) {
    quality_[static_cast<size_t>(path)] = {
        .relative_error =
            job->gauge(Family::kExchangeRelativeError, {layout::Name(path)}),
        .clipped_share =
            job->gauge(Family::kExchangeClippedShare, {layout::Name(path)}),
        .wider = job->gauge(Family::kExchangeCodecsWider, {layout::Name(path)}),
        .to_wider = job->counter(Family::kExchangeCodecChanges,
                                 {layout::Name(path), "wider"}),
        .to_narrower = job->counter(Family::kExchangeCodecChanges,
                                    {layout::Name(path), "narrower"})};
  }
  heal_sent_ = job->counter(Family::kExchangeHealBytes, {"sent"});
  heal_received_ = job->counter(Family::kExchangeHealBytes, {"received"});
  for (size_t i = 0; i < heals_.size(); ++i) {
    heals_[i] = job->counter(Family::kWeightChunksHealed, {kHealNames[i]});
  }
  residual_norm_ = job->gauge(Family::kExchangeResidualNorm);
  exact_ratio_ = job->gauge(Family::kExchangeExactRatio);
  last_committed_ = job->gauge(Family::kStepLastCommitted);
  last_committed_time_ = job->gauge(Family::kStepLastCommittedTimestamp);
  generation_ = job->gauge(Family::kMembershipGeneration);
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i] = job->histogram(Family::kStepDuration, {kStageNames[i]});
  }
  total_ = job->histogram(Family::kStepDuration, {"total"});
}

void StepMetrics::OnGeneration(Generation generation) {
  if (job_ == nullptr) return;
  generation_->Set(static_cast<double>(generation.value()));
}

void StepMetrics::OnAborted() {
  if (job_ == nullptr) return;
  aborted_->Increment();
}

void StepMetrics::OnBroadcast(uint64_t sent, uint64_t received) {
  if (job_ == nullptr) return;
  broadcast_sent_->Increment(static_cast<double>(sent));
  broadcast_received_->Increment(static_cast<double>(received));
}

void StepMetrics::OnResync(uint64_t sent, uint64_t received) {
  if (job_ == nullptr) return;
  resync_sent_->Increment(static_cast<double>(sent));
  resync_received_->Increment(static_cast<double>(received));
}

void StepMetrics::OnHealBytes(uint64_t sent, uint64_t received) {
  if (job_ == nullptr) return;
  heal_sent_->Increment(static_cast<double>(sent));
  heal_received_->Increment(static_cast<double>(received));
}

void StepMetrics::OnPublishedChunks(
    const collective::PublishedState& published) {
  if (job_ == nullptr) return;
  const auto add = [](uint64_t now, uint64_t before, metrics::Counter* to) {
    to->Increment(static_cast<double>(now - before));
  };
  for (size_t i = 0; i < heals_.size(); ++i) {
    add(published.heals[i], counted_.heals[i], heals_[i]);
  }
  for (size_t i = 0; i < faults_.size(); ++i) {
    add(published.faults[i], counted_.faults[i], faults_[i]);
  }
  add(published.num_verified, counted_.num_verified, verified_);
  counted_ = published;
}

void StepMetrics::OnCodecChanges(const v1::Commit& commit,
                                 const collective::Collective& collective) {
  if (job_ == nullptr) return;
  for (const v1::CodecChange& change : commit.codec_changes()) {
    PathGauges& path = quality_[change.path()];
    (change.to() < change.from() ? path.to_wider : path.to_narrower)
        ->Increment();
  }
  for (const layout::Path path : layout::kPaths) {
    quality_[static_cast<size_t>(path)].wider->Set(collective.num_wider(path));
  }
}

void StepMetrics::OnExactRatio(double ratio) {
  if (job_ == nullptr) return;
  exact_ratio_->Set(ratio);
}

void StepMetrics::OnResidualNorm(double norm) {
  if (job_ == nullptr) return;
  residual_norm_->Set(norm);
}

void StepMetrics::OnFinished(const StepSummary& summary, uint64_t pushed,
                             uint64_t published) {
  if (job_ == nullptr) return;
  (summary.skipped ? skipped_ : committed_)->Increment();
  if (summary.skipped) nonfinite_->Increment();
  const bool is_measured = !summary.skipped && !summary.loaded;
  for (size_t p = 0; p < quality_.size() && is_measured; ++p) {
    quality_[p].relative_error->Set(summary.quality[p].relative_error);
    quality_[p].clipped_share->Set(summary.quality[p].clipped_share);
  }
  waited_->Increment(summary.stage_seconds[static_cast<int>(Stage::kCollect)]);
  pushed_->Increment(static_cast<double>(pushed));
  published_->Increment(static_cast<double>(published));
  wire_sent_->Increment(static_cast<double>(summary.wire_bytes_sent));
  wire_received_->Increment(static_cast<double>(summary.wire_bytes_received));
  last_committed_->Set(static_cast<double>(summary.step.value()));
  job_->SetToCurrentTime(last_committed_time_);
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->Observe(summary.stage_seconds[i]);
  }
  total_->Observe(summary.seconds);
}

}  // namespace ballast::engine
