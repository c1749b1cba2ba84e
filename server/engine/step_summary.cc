#include "server/engine/step_summary.h"

#include <cstddef>

namespace ballast::engine {

const v1::ErrorReport& ReportOf(const v1::Commit& commit, layout::Path path) {
  return path == layout::Path::kGradients ? commit.gradient_errors()
                                          : commit.weight_errors();
}

StepSummary SummaryOf(const v1::Commit& commit, Generation generation) {
  StepSummary summary;
  summary.generation = generation;
  summary.step = Step(commit.step());
  summary.loaded = commit.load() != 0;
  summary.skipped = commit.skipped() && !summary.loaded;
  summary.weight_version = WeightVersion(commit.step());
  summary.optimizer_step = commit.optimizer_step();
  summary.grad_norm = commit.grad_norm();
  summary.clip_factor = commit.clip_factor();
  summary.lr = commit.groups_size() > 0 ? commit.groups(0).lr() : 0;
  for (const layout::Path path : layout::kPaths) {
    const v1::ErrorReport& report = ReportOf(commit, path);
    PathQuality& quality = summary.quality[static_cast<size_t>(path)];
    quality.sampled = report.sampled();
    quality.relative_error = report.relative_error();
    quality.clipped_share = report.clipped_share();
  }
  return summary;
}

}  // namespace ballast::engine
