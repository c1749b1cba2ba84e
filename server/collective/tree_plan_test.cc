#include "server/collective/tree_plan.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast::collective {
namespace {

using kernels::RankRange;
using Ranges = std::vector<RankRange>;

Ranges All(int nodes, int workers) {
  const TreePlan plan({nodes, workers});
  return Ranges(plan.ranges().begin(), plan.ranges().end());
}

TEST(TreePlanTest, MatchesTheExamplesOfTheHeader) {
  EXPECT_EQ(All(3, 2), (Ranges{{0, 2}, {2, 2}, {4, 2}}));
  EXPECT_EQ(All(2, 3), (Ranges{{0, 2}, {2, 1}, {3, 1}, {4, 2}}));
  EXPECT_EQ(All(1, 6), (Ranges{{0, 6}}));
  EXPECT_EQ(All(1, 1), (Ranges{{0, 1}}));
  const TreePlan groups({4, 3, 2});
  EXPECT_EQ(Ranges(groups.group_ranges().begin(), groups.group_ranges().end()),
            (Ranges{{0, 4}, {4, 2}, {6, 2}, {8, 4}}));
  EXPECT_EQ(groups.num_group_ranges(1), 2);
  EXPECT_EQ(groups.ranges_of_group(1).front(), (RankRange{6, 2}));
}

TEST(TreePlanTest, RangesCoverAllRanksOnceInOrder) {  // I7, I14
  for (int nodes = 1; nodes <= 9; ++nodes) {
    for (int workers = 1; workers <= 9; ++workers) {
      const TreePlan plan({nodes, workers});
      int next = 0;
      for (int node = 0; node < nodes; ++node) {
        ASSERT_EQ(static_cast<int>(plan.ranges_of(NodeRank(node)).size()),
                  plan.num_ranges(NodeRank(node)));
        for (const RankRange& range : plan.ranges_of(NodeRank(node))) {
          ASSERT_EQ(range.first, next);
          ASSERT_GT(range.count, 0);
          next += range.count;
        }
        ASSERT_EQ(next, (node + 1) * workers);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::collective
