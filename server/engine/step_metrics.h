// The metrics of one job's steps; handles are looked up once.
//
// Threading: control thread only.
#ifndef SERVER_ENGINE_STEP_METRICS_H_
#define SERVER_ENGINE_STEP_METRICS_H_

#include <array>

#include "server/base/ids.h"
#include "server/engine/ports.h"
#include "server/metrics/metrics.h"

namespace ballast::engine {

class StepMetrics {
 public:
  // `job` outlives this; null: nothing is counted.
  explicit StepMetrics(metrics::JobMetrics* job);

  void OnGeneration(Generation generation);
  void OnAborted();
  void OnFinished(const StepSummary& summary);

 private:
  metrics::JobMetrics* const job_;
  metrics::Counter* committed_ = nullptr;
  metrics::Counter* skipped_ = nullptr;
  metrics::Counter* aborted_ = nullptr;
  metrics::Counter* waited_ = nullptr;
  metrics::Gauge* last_committed_ = nullptr;
  metrics::Gauge* generation_ = nullptr;
  std::array<metrics::Histogram*, kNumStages> stages_{};
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_STEP_METRICS_H_
