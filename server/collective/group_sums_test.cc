#include "server/collective/group_sums.h"

#include <cstddef>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/collective/tree_plan.h"

namespace ballast::collective {
namespace {

using kernels::RankRange;

// The tree over ranks [first, first + count), as text.
std::string Tree(int first, int count) {
  if (count == 1) return std::to_string(first);
  const int left = kernels::LeftCount(count);
  return "(" + Tree(first, left) + "+" + Tree(first + left, count - left) + ")";
}

std::vector<RankRange> NodeRanges(const TreePlan& tree, int group) {
  std::vector<RankRange> nodes;
  for (int i = 0; i < tree.topology().num_owners(); ++i) {
    const auto ranges =
        tree.ranges_of(tree.topology().NodeAt(group, NodeRank(i)));
    nodes.insert(nodes.end(), ranges.begin(), ranges.end());
  }
  return nodes;
}

// What the additions make of the nodes' sums.
std::vector<std::string> Made(const std::vector<GroupAdd>& adds,
                              const std::vector<RankRange>& nodes,
                              size_t num_sums) {
  std::vector<std::string> places;
  for (const RankRange& range : nodes) {
    places.push_back(Tree(range.first, range.count));
  }
  places.resize(nodes.size() + num_sums);
  for (const GroupAdd& add : adds) {
    places[add.into] =
        add.right < 0 ? places[add.left]
                      : "(" + places[add.left] + "+" + places[add.right] + ")";
  }
  return {places.begin() + nodes.size(), places.end()};
}

TEST(GroupSumsTest, FollowTheCanonicalTree) {  // I8
  for (int nodes = 1; nodes <= 12; ++nodes) {
    for (int workers = 1; workers <= 5; ++workers) {
      for (int owners = 1; owners <= nodes; ++owners) {
        if (nodes % owners != 0) continue;
        const TreePlan tree({nodes, workers, owners});
        EXPECT_TRUE(kernels::IsTreeCover(tree.group_ranges(), nodes * workers));
        for (int group = 0; group < nodes / owners; ++group) {
          const auto sums = tree.ranges_of_group(group);
          const std::vector<RankRange> of_nodes = NodeRanges(tree, group);
          const std::vector<std::string> made =
              Made(PlanGroupSums(of_nodes, sums), of_nodes, sums.size());
          for (size_t i = 0; i < sums.size(); ++i) {
            EXPECT_EQ(made[i], Tree(sums[i].first, sums[i].count))
                << nodes << "x" << workers << ", " << owners << " of a group";
          }
        }
      }
    }
  }
}

TEST(GroupSumsTest, GoOverWhatIsNotNeededAnyMore) {  // of the header
  const std::vector<RankRange> nodes = {{0, 2}, {2, 1}, {3, 1}, {4, 2}};
  const std::vector<RankRange> group = {{0, 4}, {4, 2}};
  EXPECT_EQ(PlanGroupSums(nodes, group),
            (std::vector<GroupAdd>{{1, 2, 1}, {0, 1, 4}, {3, -1, 5}}));
}

// The control: sums of nodes added in their order are another tree.
TEST(GroupSumsTest, NodesInTheirOrderAreAnotherTree) {
  const std::vector<RankRange> nodes = {{0, 2}, {2, 1}, {3, 1}};
  EXPECT_NE(Made({{0, 1, 3}, {3, 2, 3}}, nodes, 1).front(), Tree(0, 4));
}

}  // namespace
}  // namespace ballast::collective
