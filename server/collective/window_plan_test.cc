#include "server/collective/window_plan.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "server/layout/layout.h"

namespace ballast::collective {
namespace {

BatchCut Cut(const layout::Layout& layout, int64_t batch_bytes) {
  return CutBatches(
      layout.buckets()[0],
      [](const layout::Chunk& chunk) {
        return 4 * (chunk.state_end - chunk.state_begin);
      },
      batch_bytes);
}

using Places = std::vector<std::vector<int64_t>>;

TEST(WindowPlanTest, RunsAreDenseAndApart) {
  // Three cells and a tail of 5 (16 with padding) on two nodes: 2 | 2.
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {3 * 2048 + 5}}}, {2, 3}, 1, {});
  const TreePlan tree({2, 3});  // two subtrees on each node
  const BatchCut cut = Cut(layout, 1 << 30);
  const WindowPlan first = PlanWindow(cut, tree, NodeRank(0));
  EXPECT_EQ(first.sums, (Places{{0}, {2 * 4096}}));
  EXPECT_EQ(first.received, (Places{{0}, {2 * (4096 + 2064)}}));
  EXPECT_EQ(first.elements, 2 * (4096 + 2064) + 2 * 4096);
  const WindowPlan second = PlanWindow(cut, tree, NodeRank(1));
  EXPECT_EQ(second.sums, (Places{{0}, {2 * 4096}}));
  EXPECT_EQ(second.received, (Places{{2 * (4096 + 2064)}, {2 * 4096}}));
  EXPECT_EQ(second.elements, 2 * (4096 + 2064) + 2 * 2064);
}

TEST(WindowPlanTest, ABatchIsOneRun) {
  // The same in chunks and batches of a cell.
  const layout::Layout layout = *layout::Layout::Create(
      {{"w", {3 * 2048 + 5}}}, {2, 3}, 1, {.chunk_bytes = 1});
  const WindowPlan plan =
      PlanWindow(Cut(layout, 1), TreePlan({2, 3}), NodeRank(0));
  EXPECT_EQ(plan.sums, (Places{{0, 4096}, {8192, 3 * 4096}}));
  EXPECT_EQ(plan.received[1],
            (std::vector<int64_t>{3 * 4096 + 32, 4 * 4096 + 32}));
  EXPECT_EQ(plan.elements, 5 * 4096 + 32);
}

TEST(WindowPlanTest, SumsOfGroupsFollow) {
  // The first test's, as the second of two groups: its sums are [6,8) [8,12).
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {3 * 2048 + 5}}}, {4, 3, 2}, 1, {});
  const TreePlan tree({4, 3, 2});
  const WindowPlan plan = PlanWindow(Cut(layout, 1 << 30), tree, NodeRank(3));
  const int64_t sums = tree.num_ranges(NodeRank(3)) * (4096 + 2064);
  const int64_t received = tree.num_ranges(NodeRank(2)) * 2064;
  EXPECT_EQ(plan.received[0], (std::vector<int64_t>{sums}));
  EXPECT_EQ(plan.groups,
            (Places{{sums + received}, {sums + received + 2 * 2064}}));
  EXPECT_EQ(plan.elements, sums + received + 4 * 2064);
}

TEST(WindowPlanTest, AGroupOfOneNodeHasItsSums) {
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {2048}}}, {3, 1, 1}, 1, {});
  const WindowPlan plan =
      PlanWindow(Cut(layout, 1), TreePlan({3, 1, 1}), NodeRank(1));
  EXPECT_EQ(plan.sums, (Places{{0}}));
  EXPECT_EQ(plan.groups, (Places{{2048}, {0}, {4096}}));
}

TEST(WindowPlanTest, AnOwnerOfNothingReceivesNothing) {  // I4
  const layout::Layout layout =
      *layout::Layout::Create({{"w", {3}}}, {2, 1}, 1, {});
  const TreePlan tree({2, 1});
  const BatchCut cut = Cut(layout, 1);
  EXPECT_EQ(PlanWindow(cut, tree, NodeRank(0)).elements, 16);
  EXPECT_EQ(PlanWindow(cut, tree, NodeRank(1)).elements, 32);
}

}  // namespace
}  // namespace ballast::collective
