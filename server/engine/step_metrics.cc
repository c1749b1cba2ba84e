#include "server/engine/step_metrics.h"

#include <string_view>

namespace ballast::engine {
namespace {

using metrics::Family;

constexpr std::array<std::string_view, kNumStages> kStageNames = {
    "collect", "reduce", "vote", "update", "publish", "wait"};

}  // namespace

StepMetrics::StepMetrics(metrics::JobMetrics* job) : job_(job) {
  if (job == nullptr) return;
  committed_ = job->counter(Family::kSteps, {"committed"});
  skipped_ = job->counter(Family::kSteps, {"skipped"});
  aborted_ = job->counter(Family::kSteps, {"aborted"});
  waited_ = job->counter(Family::kStragglerWait);
  last_committed_ = job->gauge(Family::kStepLastCommitted);
  generation_ = job->gauge(Family::kMembershipGeneration);
  for (int i = 0; i < kNumStages; ++i) {
    stages_[i] = job->histogram(Family::kStepDuration, {kStageNames[i]});
  }
}

void StepMetrics::OnGeneration(Generation generation) {
  if (job_ == nullptr) return;
  generation_->Set(static_cast<double>(generation.value()));
}

void StepMetrics::OnAborted() {
  if (job_ == nullptr) return;
  aborted_->Increment();
}

void StepMetrics::OnFinished(const StepSummary& summary) {
  if (job_ == nullptr) return;
  (summary.skipped ? skipped_ : committed_)->Increment();
  // From the first to the last contribution: the fast ranks wait meanwhile.
  waited_->Increment(summary.stage_seconds[static_cast<int>(Stage::kCollect)]);
  last_committed_->Set(static_cast<double>(summary.step.value()));
  for (int i = 0; i < kNumStages; ++i) {
    stages_[i]->Observe(summary.stage_seconds[i]);
  }
}

}  // namespace ballast::engine
