#include "server/daemon/report/step_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "proto/control_block.h"
#include "server/layout/metering.h"

namespace ballast::daemon {
namespace {

static_assert(proto::kNumQualityPaths == layout::kNumPaths);

proto::PathQuality ToQuality(const engine::PathQuality& path) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const bool is_measured = path.sampled > 0;
  return {.sampled = path.sampled,
          .relative_error = is_measured ? path.relative_error : kUnknown,
          .clipped_share = is_measured ? path.clipped_share : kUnknown,
          .residual_norm = path.residual_norm.value_or(kUnknown),
          .num_wider = static_cast<uint32_t>(path.num_wider),
          .reserved = 0};
}

}  // namespace

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
  for (size_t p = 0; p < layout::kNumPaths; ++p) {
    const engine::PathQuality& path = summary.quality[p];
    report.relative_error =
        std::max(report.relative_error, path.relative_error);
    report.quality[p] = ToQuality(path);
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
