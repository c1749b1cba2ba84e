#include "server/daemon/snapshot_metrics.h"

#include "absl/strings/str_cat.h"
#include "server/metrics/families.h"

namespace ballast::daemon {

using metrics::Family;

SnapshotMetrics::SnapshotMetrics(metrics::JobMetrics* job) : job_(job) {
  if (job == nullptr) return;
  saved_ = job->counter(Family::kSnapshots, {"saved"});
  failed_ = job->counter(Family::kSnapshots, {"failed"});
  skipped_ = job->counter(Family::kSnapshots, {"skipped"});
  superseded_ = job->counter(Family::kSnapshots, {"superseded"});
  duration_ = job->histogram(Family::kSnapshotDuration);
  last_step_ = job->gauge(Family::kSnapshotLastStep);
  last_time_ = job->gauge(Family::kSnapshotLastTimestamp);
  bytes_ = job->counter(Family::kSnapshotBytes);
  copied_ = job->counter(Family::kSnapshotCopiedBytes);
}

void SnapshotMetrics::Update(const snapshot::SnapshotStatus& status) {
  if (job_ == nullptr) return;
  failed_->Increment(static_cast<double>(status.failed - counted_failed_));
  skipped_->Increment(static_cast<double>(status.skipped - counted_skipped_));
  superseded_->Increment(
      static_cast<double>(status.superseded - counted_superseded_));
  copied_->Increment(
      static_cast<double>(status.bytes_by_updates - counted_copied_));
  counted_failed_ = status.failed;
  counted_skipped_ = status.skipped;
  counted_superseded_ = status.superseded;
  counted_copied_ = status.bytes_by_updates;
}

void SnapshotMetrics::OnSnapshot(const snapshot::SnapshotStatus& status,
                                 bool is_saved) {
  if (job_ == nullptr) return;
  Update(status);
  if (is_saved) saved_->Increment();
  duration_->Observe(absl::ToDoubleSeconds(status.last_duration));
  if (!is_saved || !status.last.has_value()) return;
  last_step_->Set(static_cast<double>(status.last->step));
  job_->SetToCurrentTime(last_time_);
  bytes_->Increment(static_cast<double>(status.last->size_bytes));
}

std::string SnapshotLine(std::string_view job,
                         const absl::StatusOr<snapshot::Saved>& saved,
                         absl::Duration took) {
  const std::string name(job);
  if (!saved.ok()) {
    return absl::StrCat("snapshot failed job=", name, " reason=\"",
                        std::string(saved.status().message()), "\"");
  }
  return absl::StrCat("snapshot saved job=", name, " path=", saved->path,
                      " step=", saved->step, " bytes=", saved->size_bytes,
                      " seconds=", absl::ToDoubleSeconds(took));
}

}  // namespace ballast::daemon
