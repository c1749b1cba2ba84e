#include "server/metrics/metrics.h"

#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"

namespace ballast::metrics {
namespace {

TEST(MetricsTest, HandlesAreStableAndCount) {
  Metrics metrics({});
  Counter* const ok = metrics.counter(Family::kClientAttaches, {"ok"});
  ok->Increment();
  ok->Increment(2.5);
  EXPECT_EQ(metrics.counter(Family::kClientAttaches, {"ok"})->value(), 3.5);
  EXPECT_EQ(metrics.counter(Family::kClientAttaches, {"internal"})->value(), 0);
  Gauge* const jobs = metrics.gauge(Family::kJobs, {"running"});
  jobs->Set(4);
  jobs->Add(-1);
  EXPECT_EQ(jobs->value(), 3);
}

TEST(MetricsTest, HistogramsCountByUpperBound) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 2.0, 99.0}) {
    histogram.Observe(value);
  }
  EXPECT_EQ(histogram.count(0), 2u) << "bounds are inclusive";
  EXPECT_EQ(histogram.count(1), 2u);
  EXPECT_EQ(histogram.count(2), 1u);
  EXPECT_EQ(histogram.sum(), 104);
}

TEST(MetricsTest, AJobsSeriesLiveAsLongAsTheJob) {
  Metrics metrics({});
  auto job = metrics.StartJob("gpt2");
  job->counter(Family::kSteps, {"committed"})->Increment();
  ASSERT_EQ(metrics.jobs().size(), 1u);
  EXPECT_EQ(metrics.jobs()[0]->job_id(), "gpt2");
  job.reset();
  EXPECT_TRUE(metrics.jobs().empty());
  job = metrics.StartJob("gpt2");
  EXPECT_EQ(job->counter(Family::kSteps, {"committed"})->value(), 0)
      << "another job of that name begins at 0";
}

// I22
TEST(MetricsTest, UpdatesFromManyThreadsAreCounted) {
  Metrics metrics({});
  auto job = metrics.StartJob("a");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Histogram* const h = job->histogram(Family::kStepDuration, {"reduce"});
      for (int j = 0; j < 1000; ++j) {
        metrics.counter(Family::kClientAttaches, {"ok"})->Increment();
        h->Observe(0.01);
        metrics.StartJob("b");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.counter(Family::kClientAttaches, {"ok"})->value(), 4000);
  EXPECT_EQ(job->histogram(Family::kStepDuration, {"reduce"})->count(3), 4000u);
}

TEST(MetricsDeathTest, AnUndeclaredSeriesIsABug) {
  Metrics metrics({});
  EXPECT_DEATH(metrics.counter(Family::kClientAttaches, {"perhaps"}),
               "ballast_client_attaches_total");
  EXPECT_DEATH(metrics.gauge(Family::kClientAttaches, {"ok"}), "families.cc");
  EXPECT_DEATH(metrics.counter(Family::kSteps, {"committed"}), "families.cc");
}

class FixedClock final : public base::Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixMillis(1500); }
};

TEST(MetricsTest, TimesOfDayComeFromTheGivenClock) {
  const FixedClock wall;
  Metrics metrics({}, &wall);
  const auto job = metrics.StartJob("gpt2");
  Gauge* const gauge = job->gauge(Family::kStepLastCommittedTimestamp);
  EXPECT_EQ(gauge->value(), 0);
  job->SetToCurrentTime(gauge);
  EXPECT_EQ(gauge->value(), 1.5);
}

}  // namespace
}  // namespace ballast::metrics
