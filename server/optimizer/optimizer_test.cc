#include "server/optimizer/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/hyper_parameters.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/ids.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/status_matchers.h"
#include "server/base/thread_pool.h"
#include "server/layout/layout.h"
#include "server/optimizer/optimizer_testing.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/update_guard.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;

TEST_F(OptimizerTest, EqualsThePlainLoopForAnyCut) {  // I9, I14, I25
  for (const Case& c : kCases) {
    for (const int nodes : {1, 3}) {
      for (const uint64_t bucket_bytes : {1, 40'000, 1 << 22}) {
        for (const uint64_t chunk_bytes : {1, 30'000}) {
          const layout::Layout layout =
              MakeLayout(nodes, bucket_bytes, chunk_bytes);
          for (int r = 0; r < nodes; ++r) {
            base::SimComputePool pool(&executor_, r, 1 + r);
            Node node(layout, NodeRank(r), c.kind, c.has_momentum, &device_,
                      &pool);
            ASSERT_THAT(node.Create(), IsOk());
            PlainLoop own(layout);
            node.LoadWeights(own);
            node.optimizer().InitializeFromWeights(Moments::kZero);
            for (int64_t step = 1; step <= 3; ++step) {
              const auto scalars = ScalarsOf(c.kind, step, c.has_momentum);
              own.NewGradients(step);
              node.LoadGradients(own);
              own.Step(c.kind, c.has_momentum, scalars);
              ASSERT_THAT(node.Begin(Step(step), scalars), IsOk());
              node.StartAll();
              ASSERT_TRUE(executor_.RunUntilIdle());
              node.ExpectEquals(own);
              ASSERT_FALSE(HasFailure());
            }
          }
        }
      }
    }
  }
}

TEST_F(OptimizerTest, ReportsEachBucketOnceOwnedOrNot) {
  const layout::Layout layout = MakeLayout(5, 8192, 8192);  // a cell a bucket
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdam, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  ASSERT_EQ(layout.state_elements(NodeRank(0)), 0);
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdam, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(node.observer().counts.size(), layout.buckets().size());
  for (const auto& [bucket, count] : node.observer().counts) {
    EXPECT_EQ(count, 1) << bucket.ToString();
  }
}

TEST_F(OptimizerTest, AChunkIsUpdatedOnceAStep) {  // I14, I19
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  const auto scalars = ScalarsOf(OptimizerKind::kAdamW, 1, false);
  plain.Step(OptimizerKind::kAdamW, false, scalars);
  for (int time = 0; time < 2; ++time) {  // the second one changes nothing
    ASSERT_THAT(node.Begin(Step(1), scalars), IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
    node.ExpectEquals(plain);
  }
}

// Keeps what a chunk was when it was announced.
struct CopyingGuard final : UpdateGuard {
  void BeforeUpdate(int64_t chunk) override {
    ++calls[chunk];
    for (const layout::Piece& piece : (*chunks)[chunk]->pieces) {
      std::copy_n(state->master().begin() + piece.state_offset, piece.size(),
                  copy.begin() + piece.state_offset);
    }
  }
  void BeforeResiduals(int, BucketId) override {}
  std::vector<const layout::Chunk*>* chunks;
  ShardState* state;
  std::vector<float> copy;
  std::map<int64_t, int> calls;
};

TEST_F(OptimizerTest, AnnouncesEachChunkBeforeItChanges) {  // I18
  const layout::Layout layout = MakeLayout(2, 1 << 16, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_, &pool);
  std::vector<const layout::Chunk*> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const auto& chunk : bucket.shards[1].chunks) chunks.push_back(&chunk);
  }
  CopyingGuard guard;
  guard.chunks = &chunks;
  guard.state = &node.state();
  node.GuardBy(&guard);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  const std::vector<float> before(node.state().master().begin(),
                                  node.state().master().end());
  guard.copy.resize(before.size());
  for (int time = 0; time < 2; ++time) {  // the second one changes nothing
    ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
                IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
  }
  EXPECT_EQ(guard.calls.size(), chunks.size());
  for (const auto& [chunk, count] : guard.calls) EXPECT_EQ(count, 1) << chunk;
  EXPECT_EQ(guard.copy, before);
  EXPECT_NE(before, std::vector<float>(node.state().master().begin(),
                                       node.state().master().end()));
}

TEST_F(OptimizerTest, MastersOfNewWeightsKeepTheirMomentsIfAsked) {  // I1
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  std::vector<const layout::Chunk*> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const auto& chunk : bucket.shards[0].chunks) chunks.push_back(&chunk);
  }
  CopyingGuard guard;
  guard.chunks = &chunks;
  guard.state = &node.state();
  node.GuardBy(&guard);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  guard.copy.resize(node.state().master().size());
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  const auto copy = [](std::span<float> values) {
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> master = copy(node.state().master());
  const std::vector<float> moment = copy(node.state().moment(0));

  guard.calls.clear();
  node.optimizer().KeepAll();  // I18
  EXPECT_EQ(guard.calls.size(), chunks.size());
  EXPECT_EQ(guard.copy, master);
  node.LoadWeights(plain);  // the initial ones again
  node.optimizer().InitializeFromWeights(Moments::kStay);
  EXPECT_NE(copy(node.state().master()), master);
  EXPECT_EQ(copy(node.state().moment(0)), moment);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  EXPECT_EQ(copy(node.state().moment(0)), std::vector<float>(moment.size()));
  EXPECT_NE(moment, std::vector<float>(moment.size()));  // the control
}

TEST_F(OptimizerTest, FrozenAndOthersBytesStayUntouched) {  // I5, I14
  const layout::Layout layout = MakeLayout(2, 30'000, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  plain.NewGradients(1);
  node.LoadGradients(plain);
  std::ranges::fill(node.weights(), std::byte{0x5a});
  ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
              IsOk());
  node.StartAll();
  ASSERT_TRUE(executor_.RunUntilIdle());
  std::vector<bool> is_owned(node.weights().size());
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Piece& piece : bucket.shards[1].pieces) {
      const int size = SizeOf(layout.tensor(piece.tensor).dtype);
      const uint64_t offset = layout.place(piece.tensor).weight_offset;
      std::fill(is_owned.begin() + offset + piece.begin * size,
                is_owned.begin() + offset + piece.end * size, true);
    }
  }
  for (size_t i = 0; i < is_owned.size(); ++i) {
    ASSERT_TRUE(is_owned[i] || node.weights()[i] == std::byte{0x5a}) << i;
  }
}

TEST_F(OptimizerTest, WeightsThatAreQuantizedLaterAreNotCast) {  // I2
  const layout::Layout layout = MakeLayout(2, 30'000, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  PlainLoop plain(layout);
  plain.NewGradients(1);
  std::vector<float> masters[2];
  for (const bool casts : {false, true}) {
    Node node(layout, NodeRank(1), OptimizerKind::kAdamW, false, &device_,
              &pool);
    if (!casts) node.LeaveWeightsAlone();
    ASSERT_THAT(node.Create(), IsOk());
    node.LoadWeights(plain);
    node.optimizer().InitializeFromWeights(Moments::kZero);
    node.LoadGradients(plain);
    const std::vector<std::byte> before(node.weights().begin(),
                                        node.weights().end());
    ASSERT_THAT(node.Begin(Step(1), ScalarsOf(OptimizerKind::kAdamW, 1, false)),
                IsOk());
    node.StartAll();
    ASSERT_TRUE(executor_.RunUntilIdle());
    EXPECT_EQ(std::ranges::equal(node.weights(), before), !casts);
    masters[casts].assign(node.state().master().begin(),
                          node.state().master().end());
  }
  EXPECT_EQ(masters[0], masters[1]);
}

TEST_F(OptimizerTest, RefusesScalarsThatDoNotFit) {  // I27
  const layout::Layout layout = MakeLayout(1, 1 << 20, 16384);
  base::SimComputePool pool(&executor_, 3, 2);
  Node node(layout, NodeRank(0), OptimizerKind::kSgd, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  const auto momentum = ScalarsOf(OptimizerKind::kSgd, 1, true);
  EXPECT_THAT(node.Begin(Step(1), momentum),
              StatusIs(absl::StatusCode::kInvalidArgument, "momentum"));
  const auto scalars = ScalarsOf(OptimizerKind::kSgd, 1, false);
  EXPECT_THAT(node.Begin(Step(1), std::span(scalars).first(1)),
              StatusIs(absl::StatusCode::kInvalidArgument, "1 param groups"));
  EXPECT_THAT(node.Begin(Step(1), scalars), IsOk());
}

TEST_F(OptimizerTest, RealThreadsGiveTheSameBits) {  // I22, I25
  const layout::Layout layout = MakeLayout(1, 30'000, 8192);
  base::MonotonicClock clock;
  auto loop = *base::EventLoop::Create(&clock);
  base::ThreadPool pool({.num_threads = 3}, loop.get());
  Node node(layout, NodeRank(0), OptimizerKind::kAdamW, false, &device_, &pool);
  ASSERT_THAT(node.Create(), IsOk());
  PlainLoop plain(layout);
  node.LoadWeights(plain);
  node.optimizer().InitializeFromWeights(Moments::kZero);
  for (int64_t step = 1; step <= 10; ++step) {
    const auto scalars = ScalarsOf(OptimizerKind::kAdamW, step, false);
    plain.NewGradients(step);
    node.LoadGradients(plain);
    plain.Step(OptimizerKind::kAdamW, false, scalars);
    ASSERT_THAT(node.Begin(Step(step), scalars), IsOk());
    node.observer().counts.clear();
    node.StartAll();
    while (node.observer().counts.size() < layout.buckets().size()) {
      loop->RunOnce(absl::Seconds(1));
    }
    node.ExpectEquals(plain);
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace ballast::optimizer
