#include "server/transport/routed/routes.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::transport {
namespace {

using Held = std::set<std::pair<int, int>>;  // (origin, target)

struct Case {
  Algorithm algorithm;
  Pattern pattern;
  int num_nodes;
};

std::vector<Case> Cases(int max_nodes) {
  std::vector<Case> cases;
  for (const Pattern pattern : {Pattern::kGather, Pattern::kDeliver}) {
    for (int i = 0; i < kNumAlgorithms; ++i) {
      for (int n = 1; n <= max_nodes; ++n) {
        const auto algorithm = static_cast<Algorithm>(i);
        if (Does(algorithm, pattern, n)) {
          cases.push_back({algorithm, pattern, n});
        }
      }
    }
  }
  return cases;
}

Held HeldBy(const std::vector<Block>& blocks) {
  Held held;
  for (const Block& block : blocks) {
    held.emplace(block.origin.value(), block.target.value());
  }
  return held;
}

class RoutesTest : public ::testing::Test {
 protected:
  // Plays the tables of all nodes; every message must hold what its sender
  // has, and be what its receiver expects, in the same order.
  void Play(const Case& c) {
    SCOPED_TRACE(testing::Message()
                 << Name(c.algorithm) << ", " << c.num_nodes << " nodes");
    const int n = c.num_nodes;
    std::vector<std::vector<Round>> routes;
    for (int node = 0; node < n; ++node) {
      routes.push_back(RoutesOf(c.algorithm, c.pattern, n, NodeRank(node)));
      ASSERT_EQ(routes[node].size(), routes[0].size());
    }
    held_.assign(n, {});
    for (int node = 0; node < n; ++node) {
      for (int to = 0; to < n; ++to) {
        held_[node].emplace(node, c.pattern == Pattern::kGather ? node : to);
      }
    }
    for (size_t round = 0; round < routes[0].size(); ++round) {
      PlayRound(routes, round);
    }
  }

  void PlayRound(const std::vector<std::vector<Round>>& routes, size_t round) {
    const std::vector<Held> before = held_;
    for (size_t node = 0; node < routes.size(); ++node) {
      std::set<int> peers;
      for (const Hop& hop : routes[node][round].receives) {
        EXPECT_TRUE(peers.insert(hop.peer.value()).second);
        const auto& sends = routes[hop.peer.value()][round].sends;
        const auto sent = std::ranges::find(
            sends, NodeRank(static_cast<int>(node)), &Hop::peer);
        ASSERT_NE(sent, sends.end());
        EXPECT_EQ(sent->blocks, hop.blocks);
        for (const auto& block : HeldBy(hop.blocks)) {
          EXPECT_TRUE(before[hop.peer.value()].contains(block))
              << "node " << hop.peer.value() << " sends what it has not";
          EXPECT_TRUE(held_[node].insert(block).second)
              << "block " << block.first << " -> " << block.second
              << " comes twice";
        }
        ++messages_;
      }
      EXPECT_EQ(routes[node][round].sends.size(),
                routes[node][round].receives.size());
    }
  }

  std::vector<Held> held_;
  int messages_ = 0;
};

// I4, I7: every block reaches all, or its target, for any number of nodes.
TEST_F(RoutesTest, EveryBlockArrivesOnce) {
  for (const Case& c : Cases(33)) {
    Play(c);
    for (int node = 0; node < c.num_nodes; ++node) {
      for (int origin = 0; origin < c.num_nodes; ++origin) {
        const int target = c.pattern == Pattern::kGather ? origin : node;
        EXPECT_TRUE(held_[node].contains({origin, target}))
            << Name(c.algorithm) << ", " << c.num_nodes << " nodes: node "
            << node << " lacks the block of " << origin;
      }
    }
  }
}

TEST_F(RoutesTest, MessagesAreAsFewAsTheAlgorithmPromises) {
  for (const Case& c : Cases(33)) {
    messages_ = 0;
    Play(c);
    const int log2 = std::bit_width(static_cast<unsigned>(c.num_nodes - 1));
    const bool is_logarithmic =
        c.algorithm == Algorithm::kDoubling || c.algorithm == Algorithm::kBruck;
    EXPECT_EQ(messages_,
              c.num_nodes * (is_logarithmic ? log2 : c.num_nodes - 1))
        << Name(c.algorithm) << ", " << c.num_nodes << " nodes";
  }
}

std::vector<std::pair<int, int>> Sent(Algorithm algorithm, Pattern pattern,
                                      int num_nodes, size_t round) {
  std::vector<std::pair<int, int>> sent;
  const auto routes = RoutesOf(algorithm, pattern, num_nodes, NodeRank(0));
  for (const Block& block : routes.at(round).sends.at(0).blocks) {
    sent.emplace_back(block.origin.value(), block.target.value());
  }
  return sent;
}

// The picture of the header.
TEST_F(RoutesTest, FourNodes) {
  using Blocks = std::vector<std::pair<int, int>>;
  EXPECT_EQ(Sent(Algorithm::kRing, Pattern::kGather, 4, 1), (Blocks{{3, 3}}));
  EXPECT_EQ(Sent(Algorithm::kDoubling, Pattern::kGather, 4, 1),
            (Blocks{{0, 0}, {1, 1}}));
  EXPECT_EQ(Sent(Algorithm::kBruck, Pattern::kGather, 4, 1),
            (Blocks{{0, 0}, {1, 1}}));
  EXPECT_EQ(Sent(Algorithm::kBruck, Pattern::kDeliver, 4, 0),
            (Blocks{{0, 1}, {0, 3}}));
  EXPECT_EQ(Sent(Algorithm::kBruck, Pattern::kDeliver, 4, 1),
            (Blocks{{0, 2}, {3, 2}}));
}

TEST_F(RoutesTest, NamesGoBothWays) {
  for (int i = 0; i < kNumAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    EXPECT_EQ(AlgorithmOf(Name(algorithm)), algorithm);
  }
  EXPECT_EQ(AlgorithmOf("broadcast"), std::nullopt);
}

TEST_F(RoutesTest, DoublingNeedsAPowerOfTwo) {
  EXPECT_TRUE(Does(Algorithm::kDoubling, Pattern::kGather, 8));
  EXPECT_FALSE(Does(Algorithm::kDoubling, Pattern::kGather, 6));
  EXPECT_FALSE(Does(Algorithm::kDoubling, Pattern::kDeliver));
  EXPECT_FALSE(Does(Algorithm::kRing, Pattern::kDeliver));
  EXPECT_FALSE(Does(Algorithm::kPairwise, Pattern::kGather));
}

}  // namespace
}  // namespace ballast::transport
