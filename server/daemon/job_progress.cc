#include "server/daemon/job_progress.h"

#include "server/daemon/job_budget.h"

namespace ballast::daemon {

v1::Progress MakeProgress(const JobRecord& record,
                          const optimizer::Scalars& scalars, NodeRank node) {
  v1::Progress progress;
  progress.set_finished_step(record.finished().value());
  if (const auto& last = record.last(); last.has_value()) {
    progress.mutable_outcome()->set_generation(last->generation());
    if (last->has_commit()) {
      *progress.mutable_outcome()->mutable_commit() = last->commit();
    } else {
      *progress.mutable_outcome()->mutable_abort() = last->abort();
    }
  }
  if (node == NodeRank(0) && !scalars.cursors.empty()) {
    progress.set_rank0_cursor(scalars.cursors[0]);
  }
  return progress;
}

v1::PeerFrame OutcomeOf(Generation generation, const v1::Commit& commit) {
  v1::PeerFrame outcome;
  outcome.set_generation(generation.value());
  *outcome.mutable_commit() = commit;
  return outcome;
}

v1::PeerFrame OutcomeOf(Generation generation, const v1::Abort& abort) {
  v1::PeerFrame outcome;
  outcome.set_generation(generation.value());
  *outcome.mutable_abort() = abort;
  return outcome;
}

absl::Status KeepOutcome(const v1::PeerFrame& outcome,
                         const layout::ExchangePlan& plan, JobRecord* record) {
  const auto& last = record->last();
  const bool is_known =
      last.has_value() && last->generation() == outcome.generation() &&
      (outcome.has_commit() ? last->has_commit() && last->commit().step() ==
                                                        outcome.commit().step()
                            : last->has_abort() && last->abort().step() ==
                                                       outcome.abort().step());
  return is_known ? absl::OkStatus()
                  : record->Record(outcome, BudgetAfter(outcome, plan));
}

absl::Status KeepOutcome(Generation generation, const v1::View& view,
                         const layout::ExchangePlan& plan, JobRecord* record) {
  if (view.has_commit()) {
    return KeepOutcome(OutcomeOf(generation, view.commit()), plan, record);
  }
  if (view.has_abort()) {
    return KeepOutcome(
        OutcomeOf(Generation(generation.value() - 1), view.abort()), plan,
        record);
  }
  return absl::OkStatus();
}

}  // namespace ballast::daemon
