// What the metrics and the log say of one job's snapshots; handles are looked
// up once.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_SNAPSHOT_METRICS_H_
#define SERVER_DAEMON_SNAPSHOT_METRICS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  metrics::Counter* superseded_ = nullptr;
  metrics::Histogram* duration_ = nullptr;
  metrics::Gauge* last_step_ = nullptr;
  metrics::Gauge* last_time_ = nullptr;
  metrics::Counter* bytes_ = nullptr;
  metrics::Counter* copied_ = nullptr;
  int64_t counted_failed_ = 0;
  int64_t counted_skipped_ = 0;
  int64_t counted_superseded_ = 0;
  uint64_t counted_copied_ = 0;
};

// What the log says of one that has ended, after so long.
std::string SnapshotLine(std::string_view job,
                         const absl::StatusOr<snapshot::Saved>& saved,
                         absl::Duration took);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_SNAPSHOT_METRICS_H_
