// The metrics of one job's snapshots; handles are looked up once.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_SNAPSHOT_METRICS_H_
#define SERVER_DAEMON_SNAPSHOT_METRICS_H_

#include <cstdint>

#include "server/metrics/metrics.h"
#include "server/snapshot/job_snapshots.h"

namespace ballast::daemon {

class SnapshotMetrics {
 public:
  // `job` outlives this; null: nothing is counted.
  explicit SnapshotMetrics(metrics::JobMetrics* job);

  // What grows without an end of a snapshot.
  void Update(const snapshot::SnapshotStatus& status);
  // One has ended.
  void OnSnapshot(const snapshot::SnapshotStatus& status, bool is_saved);

 private:
  metrics::JobMetrics* const job_;
  metrics::Counter* saved_ = nullptr;
  metrics::Counter* failed_ = nullptr;
  metrics::Counter* skipped_ = nullptr;
  metrics::Histogram* duration_ = nullptr;
  metrics::Gauge* last_step_ = nullptr;
  metrics::Gauge* last_time_ = nullptr;
  metrics::Counter* bytes_ = nullptr;
  metrics::Counter* copied_ = nullptr;
  int64_t counted_skipped_ = 0;
  uint64_t counted_copied_ = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_SNAPSHOT_METRICS_H_
