#include "server/snapshot/held_sets.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/ids.h"

namespace ballast::snapshot {
namespace {

using testing::ElementsAre;

HeldSet Set(int64_t step, std::vector<int> shards, int num_shards = 3,
            uint64_t checksum = 0) {
  return {.step = step,
          .checksum = checksum != 0 ? checksum : static_cast<uint64_t>(step),
          .manifest_bytes = 100,
          .num_shards = num_shards,
          .shards = std::move(shards)};
}

// As three nodes hold them: each its own and that of the one before it.
std::vector<std::vector<HeldSet>> Ring(int64_t step) {
  return {{Set(step, {0, 2})}, {Set(step, {0, 1})}, {Set(step, {1, 2})}};
}

TEST(ChooseHeldTest, AnyNodeMayBeLost) {
  for (int lost = -1; lost < 3; ++lost) {
    auto nodes = Ring(7);
    if (lost >= 0) nodes[lost].clear();
    const auto choice = ChooseHeld(nodes, {});
    ASSERT_TRUE(choice.has_value()) << lost;
    EXPECT_EQ(choice->step, 7);
    EXPECT_EQ(choice->num_shards(), 3);
    EXPECT_EQ(choice->Nodes().size(), lost < 0 ? 3u : 2u);
  }
  auto nodes = Ring(7);
  nodes[0].clear();
  nodes[1].clear();
  EXPECT_FALSE(ChooseHeld(nodes, {}).has_value());  // the control
  EXPECT_FALSE(ChooseHeld({}, {}).has_value());
}

TEST(ChooseHeldTest, TheNewestThatIsWhole) {
  auto nodes = Ring(7);
  nodes[0].insert(nodes[0].begin(), Set(9, {0, 2}));
  EXPECT_EQ(ChooseHeld(nodes, {})->step, 7);
  nodes[1].insert(nodes[1].begin(), Set(9, {0, 1}));
  EXPECT_EQ(ChooseHeld(nodes, {})->step, 9);
}

// Nodes get other ranks, and some hold what an earlier life left.
TEST(ChooseHeldTest, PartsOfTwoLivesAreNoReplica) {
  const std::vector<std::vector<HeldSet>> nodes = {
      {Set(9, {0, 2}, 3, 11)}, {Set(9, {0, 1}, 3, 22)}, {Set(5, {0}, 1)}};
  EXPECT_EQ(ChooseHeld(nodes, {})->step, 5);
}

TEST(ChooseHeldTest, SaysWhoHoldsWhat) {
  const auto choice = ChooseHeld(Ring(7), {});
  EXPECT_THAT(choice->holders,
              ElementsAre(ElementsAre(NodeRank(0), NodeRank(1)),
                          ElementsAre(NodeRank(1), NodeRank(2)),
                          ElementsAre(NodeRank(0), NodeRank(2)),
                          ElementsAre(NodeRank(0), NodeRank(1), NodeRank(2))));
}

TEST(ChooseHeldTest, ADamagedCopyIsReplacedByTheOtherThenTheNextOlder) {
  auto nodes = Ring(7);
  for (int n = 0; n < 3; ++n) nodes[n].push_back(Ring(5)[n][0]);
  std::vector<BadCopy> bad = {{7, 0, NodeRank(0)}};
  EXPECT_THAT(ChooseHeld(nodes, bad)->holders[0], ElementsAre(NodeRank(1)));
  EXPECT_EQ(ChooseHeld(nodes, bad)->step, 7);
  bad.push_back({7, 0, NodeRank(1)});
  EXPECT_EQ(ChooseHeld(nodes, bad)->step, 5);
  for (int n = 0; n < 3; ++n) bad.push_back({5, 3, NodeRank(n)});
  EXPECT_FALSE(ChooseHeld(nodes, bad).has_value());
}

TEST(ChooseHeldTest, BelievesNoPeer) {  // I27
  std::vector<std::vector<HeldSet>> nodes(2);
  nodes[0] = {Set(7, {0}, 1)};
  nodes[1] = {Set(-3, {0}, 1), Set(9, {5}, 1),         Set(9, {-1}, 1),
              Set(9, {0}, 0),  Set(9, {0}, 1'000'000), Set(9, {0, 0, 0}, 2)};
  nodes[1].push_back(Set(9, {0}, 1));
  nodes[1].back().manifest_bytes = UINT64_MAX;
  EXPECT_EQ(ChooseHeld(nodes, {})->step, 7);
  // Of one replica nodes must say the same.
  nodes[1] = {Set(8, {0}, 2), Set(8, {1}, 3)};
  EXPECT_EQ(ChooseHeld(nodes, {})->step, 7);
}

// Of any two halves of a life exactly one may go on.
TEST(EarlierLifeTest, OnlyOneSideHasTheMajority) {  // I19
  for (int num_nodes = 1; num_nodes <= 6; ++num_nodes) {
    const std::vector<std::vector<HeldSet>> held = {{Set(7, {0}, num_nodes)}};
    for (int here = 1; here < 1 << num_nodes; ++here) {
      std::vector<Membership> one, other;
      for (int node = 0; node < num_nodes; ++node) {
        ((here >> node & 1) != 0 ? one : other).push_back({node, num_nodes});
      }
      const auto life = FindEarlierLife(held, one);
      const auto rest = FindEarlierLife(held, other);
      ASSERT_TRUE(life.has_value());
      EXPECT_EQ(life->num_nodes, num_nodes);
      EXPECT_EQ(life->nodes.size(), one.size());
      EXPECT_NE(life->HasMajority(), rest->HasMajority())
          << num_nodes << " nodes, " << here;
    }
  }
}

TEST(EarlierLifeTest, IsTheNewestAndCountsOnlyItsOwn) {
  EXPECT_FALSE(FindEarlierLife({}, {}).has_value());
  std::vector<std::vector<HeldSet>> nodes = {
      {Set(9, {2}), Set(7, {2})}, {}, {Set(5, {0}, 2)}, {Set(99, {7}, 2)}};
  const std::vector<Membership> were = {{2, 3}, {1, 3}, {0, 2}, {3, 3}, {}};
  const auto life = FindEarlierLife(nodes, were);
  ASSERT_TRUE(life.has_value());
  EXPECT_EQ(life->step, 9);
  EXPECT_THAT(life->nodes, ElementsAre(1, 2));
  EXPECT_TRUE(life->HasMajority());
  EXPECT_FALSE(FindEarlierLife(nodes, {})->HasMajority());
  EXPECT_FALSE(FindEarlierLife(nodes, {were.data(), 1})->HasMajority());
  // All have left it: whoever comes goes on.
  nodes[0][0].is_last = true;
  EXPECT_TRUE(FindEarlierLife(nodes, {were.data(), 1})->HasMajority());
}

}  // namespace
}  // namespace ballast::snapshot
