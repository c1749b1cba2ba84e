// The metrics of one job's steps; handles are looked up once.
//
// Threading: control thread only.
#ifndef SERVER_ENGINE_STEP_METRICS_H_
#define SERVER_ENGINE_STEP_METRICS_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/collective/collective.h"
#include "server/engine/ports.h"
#include "server/layout/metering.h"
#include "server/metrics/metrics.h"

namespace ballast::engine {

class StepMetrics {
 public:
  // `job` outlives this; null: nothing is counted. `transport` is the label of
  // what moves bytes between nodes.
  StepMetrics(metrics::JobMetrics* job, std::string_view transport);

  void OnGeneration(Generation generation);
  void OnAborted();
  // Bytes of initial weights that went between nodes.
  void OnBroadcast(uint64_t sent, uint64_t received);
  // Bytes of published weights that were compared with another node's.
  void OnResync(uint64_t sent, uint64_t received);
  // Bytes of published weights that healed a node's copy.
  void OnHealBytes(uint64_t sent, uint64_t received);
  // Since the job's start.
  void OnPublishedChunks(const collective::PublishedState& published);
  // Of a commit whose changes are in force, parsed by ParseCodecChanges.
  void OnCodecChanges(const v1::Commit& commit,
                      const collective::Collective& collective);
  void OnExactRatio(double ratio);
  void OnResidualNorm(double norm);
  // `pushed`, `published`: bytes of all local ranks' gradients, and of the
  // weights that are visible now.
  void OnFinished(const StepSummary& summary, uint64_t pushed,
                  uint64_t published);

 private:
  metrics::JobMetrics* const job_;
  metrics::Counter* committed_ = nullptr;
  metrics::Counter* skipped_ = nullptr;
  metrics::Counter* aborted_ = nullptr;
  metrics::Counter* waited_ = nullptr;
  metrics::Counter* nonfinite_ = nullptr;
  metrics::Counter* pushed_ = nullptr;
  metrics::Counter* published_ = nullptr;
  metrics::Counter* wire_sent_ = nullptr;
  metrics::Counter* wire_received_ = nullptr;
  metrics::Counter* broadcast_sent_ = nullptr;
  metrics::Counter* broadcast_received_ = nullptr;
  metrics::Counter* resync_sent_ = nullptr;
  metrics::Counter* resync_received_ = nullptr;
  std::array<metrics::Counter*, collective::kNumChunkFaults> faults_{};
  metrics::Counter* verified_ = nullptr;
  struct PathGauges {
    metrics::Gauge* relative_error = nullptr;
    metrics::Gauge* clipped_share = nullptr;
    metrics::Gauge* wider = nullptr;
    metrics::Counter* to_wider = nullptr;
    metrics::Counter* to_narrower = nullptr;
  };
  metrics::Gauge* exact_ratio_ = nullptr;
  metrics::Gauge* residual_norm_ = nullptr;
  std::array<PathGauges, layout::kNumPaths> quality_{};
  metrics::Counter* heal_sent_ = nullptr;
  metrics::Counter* heal_received_ = nullptr;
  std::array<metrics::Counter*, collective::kNumHealKinds> heals_{};
  collective::PublishedState counted_;
  metrics::Gauge* last_committed_ = nullptr;
  metrics::Gauge* last_committed_time_ = nullptr;
  metrics::Gauge* generation_ = nullptr;
  std::array<metrics::Histogram*, kNumStages - 1> stages_{};  // without kWait
  metrics::Histogram* total_ = nullptr;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_STEP_METRICS_H_
