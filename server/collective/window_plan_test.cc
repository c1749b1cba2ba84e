#include "server/collective/window_plan.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "server/layout/layout.h"

namespace ballast::collective {
namespace {

TEST(WindowPlanTest, RunsAreDenseAndApart) {
  // Three cells and a tail of 5 (16 with padding) on two nodes: 2 | 2.
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {3 * 2048 + 5}}}, {2, 3}, 1, {});
  const TreePlan tree({2, 3});  // two subtrees on each node
  const layout::Bucket& bucket = layout.buckets()[0];
  const WindowPlan first = PlanWindow(bucket, tree, NodeRank(0));
  EXPECT_EQ(first.sums, (std::vector<int64_t>{0, 2 * 4096}));
  EXPECT_EQ(first.received[1], 2 * (4096 + 2064));
  EXPECT_EQ(first.elements, 2 * (4096 + 2064) + 2 * 4096);
  const WindowPlan second = PlanWindow(bucket, tree, NodeRank(1));
  EXPECT_EQ(second.sums, (std::vector<int64_t>{0, 2 * 4096}));
  EXPECT_EQ(second.received[0], 2 * (4096 + 2064));
  EXPECT_EQ(second.elements, 2 * (4096 + 2064) + 2 * 2064);
}

TEST(WindowPlanTest, AnOwnerOfNothingReceivesNothing) {  // I4
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {3}}}, {2, 1}, 1, {});
  const TreePlan tree({2, 1});
  EXPECT_EQ(PlanWindow(layout.buckets()[0], tree, NodeRank(0)).elements, 16);
  EXPECT_EQ(PlanWindow(layout.buckets()[0], tree, NodeRank(1)).elements, 32);
}

}  // namespace
}  // namespace ballast::collective
