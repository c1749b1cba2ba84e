#include "server/engine/step_metrics.h"

namespace ballast::engine {
namespace {

using metrics::Family;

constexpr std::array<std::string_view, kNumStages - 1> kStageNames = {
    "collect", "reduce", "vote", "update", "publish"};

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

void StepMetrics::OnFinished(const StepSummary& summary, uint64_t pushed,
                             uint64_t published) {
  if (job_ == nullptr) return;
  (summary.skipped ? skipped_ : committed_)->Increment();
  if (summary.skipped) nonfinite_->Increment();
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
