#include "server/daemon/replica_metrics.h"

#include "server/metrics/families.h"

namespace ballast::daemon {

using metrics::Family;

ReplicaMetrics::ReplicaMetrics(metrics::JobMetrics* job) {
  if (job == nullptr) return;
  made_ = job->counter(Family::kReplicas, {"made"});
  failed_ = job->counter(Family::kReplicas, {"failed"});
  skipped_ = job->counter(Family::kReplicas, {"skipped"});
  sent_ = job->counter(Family::kReplicaBytes, {"sent"});
  received_ = job->counter(Family::kReplicaBytes, {"received"});
  lag_ = job->gauge(Family::kReplicaLagSteps);
  held_ = job->gauge(Family::kReplicaHeldBytes);
}

void ReplicaMetrics::Update(const snapshot::ReplicaStatus& status) {
  if (made_ == nullptr || !status.is_enabled) return;
  skipped_->Increment(static_cast<double>(status.skipped - counted_.skipped));
  sent_->Increment(
      static_cast<double>(status.bytes_sent - counted_.bytes_sent));
  received_->Increment(
      static_cast<double>(status.bytes_received - counted_.bytes_received));
  lag_->Set(static_cast<double>(status.lag_steps));
  held_->Set(static_cast<double>(status.held_bytes));
  counted_ = status;
}

void ReplicaMetrics::OnReplica(const snapshot::ReplicaStatus& status,
                               const absl::Status& outcome) {
  if (made_ == nullptr) return;
  Update(status);
  // Cancelled: the job was closed meanwhile.
  if (!absl::IsCancelled(outcome)) {
    (outcome.ok() ? made_ : failed_)->Increment();
  }
}

}  // namespace ballast::daemon
