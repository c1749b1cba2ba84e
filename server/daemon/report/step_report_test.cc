#include "server/daemon/report/step_report.h"

#include <cmath>

#include "gtest/gtest.h"
#include "proto/control_block.h"
#include "server/base/ids.h"
#include "server/engine/ports.h"
#include "server/ipc/control_block_view.h"

namespace ballast::daemon {
namespace {

engine::StepSummary Measured() {
  engine::StepSummary summary;
  summary.step = Step(7);
  summary.quality[0] = {.sampled = 4096,
                        .relative_error = 0.25,
                        .clipped_share = 0.125,
                        .residual_norm = 3.5,
                        .num_wider = 2};
  summary.quality[1] = {.sampled = 2048, .relative_error = 0.5};
  return summary;
}

TEST(StepReportTest, HasEachPathAndTheWorse) {  // I21
  const ipc::StepReport report = ToReport(Measured());
  EXPECT_EQ(report.relative_error, 0.5);
  const proto::PathQuality& gradients = report.quality[0];
  EXPECT_EQ(gradients.sampled, 4096);
  EXPECT_EQ(gradients.relative_error, 0.25);
  EXPECT_EQ(gradients.clipped_share, 0.125);
  EXPECT_EQ(gradients.residual_norm, 3.5);
  EXPECT_EQ(gradients.num_wider, 2);
  const proto::PathQuality& weights = report.quality[1];
  EXPECT_EQ(weights.sampled, 2048);
  EXPECT_EQ(weights.relative_error, 0.5);
  EXPECT_EQ(weights.clipped_share, 0);  // measured: nothing was clipped
  EXPECT_EQ(weights.num_wider, 0);
}

TEST(StepReportTest, WhatWasNotMeasuredIsNotZero) {  // I21
  engine::StepSummary summary = Measured();
  summary.quality[1].sampled = 0;
  const ipc::StepReport report = ToReport(summary);
  EXPECT_EQ(report.quality[1].sampled, 0);
  EXPECT_TRUE(std::isnan(report.quality[1].relative_error));
  EXPECT_TRUE(std::isnan(report.quality[1].clipped_share));
  EXPECT_TRUE(std::isnan(report.quality[1].residual_norm));
  // The other path is as it was.
  EXPECT_EQ(report.quality[0].relative_error, 0.25);
  // Known, and nothing left over: another thing than no error feedback.
  summary.quality[0].residual_norm = 0.0;
  EXPECT_EQ(ToReport(summary).quality[0].residual_norm, 0);
}

TEST(StepReportTest, HasTheStepsOutcome) {
  engine::StepSummary summary = Measured();
  EXPECT_EQ(ToReport(summary).outcome, proto::StepOutcome::kCommitted);
  summary.skipped = true;
  EXPECT_EQ(ToReport(summary).outcome, proto::StepOutcome::kSkipped);
  summary.loaded = true;
  EXPECT_EQ(ToReport(summary).outcome, proto::StepOutcome::kLoaded);
}

}  // namespace
}  // namespace ballast::daemon
