// The metrics of one job's replicas; handles are looked up once.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_REPLICA_METRICS_H_
#define SERVER_DAEMON_REPLICA_METRICS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/metrics/metrics.h"
#include "server/snapshot/job_snapshots.h"

namespace ballast::daemon {

class ReplicaMetrics {
 public:
  // `job` outlives this; null: nothing is counted.
  explicit ReplicaMetrics(metrics::JobMetrics* job);

  // A step is published, or one has ended.
  void Update(const snapshot::ReplicaStatus& status);
  void OnReplica(const snapshot::ReplicaStatus& status,
                 const absl::Status& outcome);

 private:
  metrics::Counter* made_ = nullptr;
  metrics::Counter* failed_ = nullptr;
  metrics::Counter* skipped_ = nullptr;
  metrics::Counter* sent_ = nullptr;
  metrics::Counter* received_ = nullptr;
  metrics::Gauge* lag_ = nullptr;
  metrics::Gauge* held_ = nullptr;
  snapshot::ReplicaStatus counted_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_REPLICA_METRICS_H_
