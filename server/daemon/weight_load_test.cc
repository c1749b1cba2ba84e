// What a load does to memory that a snapshot may still need. Whole loads:
// tests/sim (load statements), tests/integration/load_test.
#include "server/daemon/weight_load.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"
#include "server/engine/fake_neighbours.h"
#include "server/layout/layout.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/update_guard.h"
#include "server/session/local_job.h"

namespace ballast::daemon {
namespace {

using base::IsOk;

// Notes of which buckets' residuals it was told while they were whole.
struct NotingGuard final : optimizer::UpdateGuard {
  void BeforeUpdate(int64_t) override {}
  void BeforeResiduals(int version, BucketId bucket) override {
    const std::span<const float> array = residuals->version(version);
    if (array[residuals->OffsetOf(bucket)] == 1.5f) {
      kept.insert({version, bucket.value()});
    }
  }
  optimizer::Residuals* residuals = nullptr;
  std::set<std::pair<int, int>> kept;
};

class WeightLoadTest : public testing::Test {
 protected:
  WeightLoadTest() {
    session::JobSpec spec;
    spec.name = "job";
    spec.tensors = {{.name = "w", .shape = {9000}}};
    spec.groups.emplace_back();
    auto layout = layout::Layout::Create(
        spec.tensors, {1, 1}, 1,
        {.bucket_bytes = 16 << 10, .chunk_bytes = 8 << 10});
    EXPECT_THAT(layout, IsOk());
    num_buckets_ = static_cast<int>(layout->buckets().size());
    residuals_ = *optimizer::Residuals::Create(&device_, *layout, NodeRank(0));
    job_ = *session::LocalJob::Create(&device_, &executor_, spec,
                                      *std::move(layout), NodeRank(0));
    for (int v = 0; v < 2; ++v) std::ranges::fill(residuals_->version(v), 1.5f);
    guard_.residuals = residuals_.get();
  }

  void Load(bool resets_state) {
    engine::CallLog log;
    engine::FakeOptimizer optimizer(&log);
    engine::FakeCollective collective(&log);
    WeightLoad load({.job = job_.get(),
                     .optimizer = &optimizer,
                     .residuals = residuals_.get(),
                     .guard = &guard_,
                     .collective = [&] { return &collective; }});
    load.StartLoad(Step(3), resets_state);
    EXPECT_TRUE(load.is_running());
    load.Finish();
    EXPECT_FALSE(load.is_running());
  }

  base::SimExecutor executor_{1};
  device::HostDevice device_{{}, &executor_};
  int num_buckets_ = 0;
  std::unique_ptr<optimizer::Residuals> residuals_;
  std::unique_ptr<session::LocalJob> job_;
  NotingGuard guard_;
};

TEST_F(WeightLoadTest, ResidualsAreKeptBeforeTheyAreZero) {  // I18
  Load(/*resets_state=*/true);
  EXPECT_GT(num_buckets_, 1);
  EXPECT_EQ(guard_.kept.size(), 2 * num_buckets_);
  for (int v = 0; v < 2; ++v) {
    const auto array = residuals_->version(v);
    EXPECT_TRUE(std::ranges::all_of(array, [](float x) { return x == 0; }));
  }
}

TEST_F(WeightLoadTest, ResidualsStayWithTheMoments) {
  Load(/*resets_state=*/false);
  EXPECT_TRUE(guard_.kept.empty());
  EXPECT_EQ(residuals_->version(1)[0], 1.5f);
}

}  // namespace
}  // namespace ballast::daemon
