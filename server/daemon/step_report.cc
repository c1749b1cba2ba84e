#include "server/daemon/step_report.h"

#include <algorithm>

namespace ballast::daemon {

ipc::StepReport ToReport(const engine::StepSummary& summary) {
  ipc::StepReport report;
  report.generation = summary.generation;
  report.step = summary.step;
  report.outcome = summary.loaded    ? proto::StepOutcome::kLoaded
                   : summary.skipped ? proto::StepOutcome::kSkipped
                                     : proto::StepOutcome::kCommitted;
  report.fallbacks = summary.fallbacks;
  report.weight_version = summary.weight_version;
  report.optimizer_step = summary.optimizer_step;
  report.grad_norm = summary.grad_norm;
  report.clip_factor = summary.clip_factor;
  report.lr = summary.lr;
  for (const engine::PathQuality& path : summary.quality) {
    report.relative_error =
        std::max(report.relative_error, path.relative_error);
  }
  report.wire_bytes_sent = summary.wire_bytes_sent;
  report.wire_bytes_received = summary.wire_bytes_received;
  report.payload_bytes = summary.payload_bytes;
  report.seconds = summary.seconds;
  std::copy(summary.stage_seconds.begin(), summary.stage_seconds.end(),
            report.stage_seconds);
  return report;
}

}  // namespace ballast::daemon
