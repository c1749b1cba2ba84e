#include "server/optimizer/shard_state.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/hyper_parameters.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"
#include "server/layout/layout.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;
using kernels::OptimizerKind;

class ShardStateTest : public testing::Test {
 protected:
  std::unique_ptr<ShardState> Make(OptimizerKind kind, bool has_momentum,
                                   NodeRank node = NodeRank(0)) {
    auto state =
        ShardState::Create(&device_, layout_, node, kind, has_momentum);
    EXPECT_THAT(state, IsOk());
    return *std::move(state);
  }

  base::SimExecutor executor_{1};
  device::HostDevice device_{{}, &executor_};
  layout::Layout layout_ =
      *layout::Layout::Create({{"w", {5000}}, {"b", {3}}}, {3, 2}, 1, {});
};

TEST_F(ShardStateTest, KindDecidesTheArrays) {
  EXPECT_EQ(Make(OptimizerKind::kSgd, false)->num_moments(), 0);
  EXPECT_EQ(Make(OptimizerKind::kSgd, true)->num_moments(), 1);
  EXPECT_EQ(Make(OptimizerKind::kAdam, false)->num_moments(), 2);
  EXPECT_EQ(Make(OptimizerKind::kAdamW, true)->num_moments(), 2);
  EXPECT_EQ(Make(OptimizerKind::kLion, false)->num_moments(), 1);
  EXPECT_EQ(Make(OptimizerKind::kAdagrad, false)->num_moments(), 1);
}

TEST_F(ShardStateTest, ArraysAreZeroAlignedAndApart) {
  const auto state = Make(OptimizerKind::kAdamW, false);
  const std::span<float> arrays[] = {state->master(), state->moment(0),
                                     state->moment(1), state->gradient()};
  float mark = 0;
  for (const std::span<float> array : arrays) {
    ASSERT_EQ(static_cast<int64_t>(array.size()),
              layout_.state_elements(NodeRank(0)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % layout::kAlignment,
              0u);
    EXPECT_TRUE(std::ranges::all_of(array, [](float x) { return x == 0; }));
    std::ranges::fill(array, ++mark);
  }
  mark = 0;
  for (const std::span<float> array : arrays) {
    ++mark;
    EXPECT_TRUE(std::ranges::all_of(array, [&](float x) { return x == mark; }));
  }
}

TEST_F(ShardStateTest, ANodeThatOwnsNothingHasStateToo) {  // I4
  const layout::Layout tiny =
      *layout::Layout::Create({{"w", {1}}}, {2, 1}, 1, {});
  const auto state = ShardState::Create(&device_, tiny, NodeRank(0),
                                        OptimizerKind::kAdam, false);
  ASSERT_THAT(state, IsOk());
  EXPECT_TRUE((*state)->master().empty());
  EXPECT_THAT((*state)->Commit({}), IsOk());
}

TEST_F(ShardStateTest, CommitKeepsScalars) {
  const auto state = Make(OptimizerKind::kAdamW, false);
  Scalars scalars;
  scalars.step = Step(4);
  scalars.cursors = {"a", "b"};
  ASSERT_THAT(state->Commit(scalars), IsOk());
  EXPECT_EQ(state->scalars(), scalars);
  Scalars refused = scalars;
  refused.cursors.resize(3);  // two ranks a node
  EXPECT_THAT(state->Commit(refused),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(state->scalars(), scalars);
}

TEST_F(ShardStateTest, NoMemoryIsAnErrorNotADeath) {
  device::HostDevice small({.limit_bytes = 100'000}, &executor_);
  EXPECT_THAT(ShardState::Create(&small, layout_, NodeRank(0),
                                 OptimizerKind::kAdam, false),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace ballast::optimizer
