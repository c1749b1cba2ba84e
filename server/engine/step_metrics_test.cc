#include "server/engine/step_metrics.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"

namespace ballast::engine {
namespace {

using metrics::Family;

class FixedClock final : public base::Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixMillis(1500); }
};

TEST(StepMetricsTest, InitialWeightsAreCountedApart) {  // I21
  const FixedClock wall;
  metrics::JobMetrics job("gpt2", &wall);
  StepMetrics steps(&job, "ucx");
  steps.OnBroadcast(7, 0);
  steps.OnBroadcast(1, 2);
  const auto broadcast = [&](const char* direction) {
    return job.counter(Family::kExchangeBroadcastBytes, {direction})->value();
  };
  EXPECT_EQ(broadcast("sent"), 8);
  EXPECT_EQ(broadcast("received"), 2);
  steps.OnResync(5, 6);
  steps.OnResync(0, 6);
  EXPECT_EQ(job.counter(Family::kExchangeResyncBytes, {"sent"})->value(), 5);
  EXPECT_EQ(job.counter(Family::kExchangeResyncBytes, {"received"})->value(),
            12);
  steps.OnPublishedChunks(  // so far
      {.faults = {1, 0, 0, 2}, .heals = {1, 2, 0, 0}, .num_verified = 5});
  steps.OnPublishedChunks(
      {.faults = {1, 0, 3, 2, 0, 7}, .heals = {1, 4, 1, 0}, .num_verified = 9});
  const auto bad = [&](const char* kind) {
    return job.counter(Family::kWeightChunksBad, {kind})->value();
  };
  EXPECT_EQ(bad("copy"), 1);
  EXPECT_EQ(bad("reference"), 0);
  EXPECT_EQ(bad("result"), 3);
  EXPECT_EQ(bad("resync"), 2);
  EXPECT_EQ(bad("verify"), 7);
  EXPECT_EQ(job.counter(Family::kWeightChunksVerified)->value(), 9);
  steps.OnHealBytes(3, 4);
  EXPECT_EQ(job.counter(Family::kExchangeHealBytes, {"sent"})->value(), 3);
  EXPECT_EQ(job.counter(Family::kExchangeHealBytes, {"received"})->value(), 4);
  const auto healed = [&](const char* kind) {
    return job.counter(Family::kWeightChunksHealed, {kind})->value();
  };
  EXPECT_EQ(healed("owner"), 1);
  EXPECT_EQ(healed("member"), 4);
  EXPECT_EQ(healed("vote"), 1);
  EXPECT_EQ(healed("resync"), 0);
  EXPECT_EQ(job.counter(Family::kExchangeWireBytes, {"ucx", "sent"})->value(),
            0);
}

TEST(StepMetricsTest, AFinishedStepIsNumberedAndDated) {
  const FixedClock wall;
  metrics::JobMetrics job("gpt2", &wall);
  StepMetrics steps(&job, "inproc");
  EXPECT_EQ(job.gauge(Family::kStepLastCommittedTimestamp)->value(), 0);
  StepSummary summary;
  summary.step = Step(7);
  steps.OnFinished(summary, /*pushed=*/8, /*published=*/4);
  EXPECT_EQ(job.gauge(Family::kStepLastCommitted)->value(), 7);
  EXPECT_EQ(job.gauge(Family::kStepLastCommittedTimestamp)->value(), 1.5);
  const auto payload = [&](const char* direction) {
    return job.counter(Family::kExchangePayloadBytes, {direction})->value();
  };
  EXPECT_EQ(payload("pushed"), 8);
  EXPECT_EQ(payload("published"), 4);
}

TEST(StepMetricsTest, ErrorsAreThoseOfTheLastStepThatCounts) {  // I21
  const FixedClock wall;
  metrics::JobMetrics job("gpt2", &wall);
  StepMetrics steps(&job, "inproc");
  StepSummary summary;
  summary.quality[0] = {.relative_error = 0.25, .clipped_share = 0.125};
  summary.quality[1] = {.relative_error = 0.5};
  steps.OnFinished(summary, 0, 0);
  StepSummary skipped;
  skipped.skipped = true;
  steps.OnFinished(skipped, 0, 0);
  const auto value = [&](Family family, const char* path) {
    return job.gauge(family, {path})->value();
  };
  EXPECT_EQ(value(Family::kExchangeRelativeError, "gradients"), 0.25);
  EXPECT_EQ(value(Family::kExchangeRelativeError, "weights"), 0.5);
  EXPECT_EQ(value(Family::kExchangeClippedShare, "gradients"), 0.125);
  EXPECT_EQ(value(Family::kExchangeClippedShare, "weights"), 0);
}

}  // namespace
}  // namespace ballast::engine
