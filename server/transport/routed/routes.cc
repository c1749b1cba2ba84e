#include "server/transport/routed/routes.h"

#include <algorithm>
#include <array>
#include <bit>

namespace ballast::transport {
namespace {

constexpr std::array<std::string_view, kNumAlgorithms> kNames = {
    "direct", "ring", "doubling", "pairwise", "bruck", "halving"};

// Nodes as plain numbers, modulo how many there are.
class Nodes {
 public:
  Nodes(Algorithm algorithm, Pattern pattern, int count)
      : algorithm_(algorithm), pattern_(pattern), count_(count) {}

  int num_rounds() const {
    if (count_ < 2) return 0;
    switch (algorithm_) {
      case Algorithm::kDirect:
        return 1;
      case Algorithm::kRing:
      case Algorithm::kPairwise:
        return count_ - 1;
      case Algorithm::kDoubling:
      case Algorithm::kBruck:
      case Algorithm::kHalving:
        return std::bit_width(static_cast<unsigned>(count_ - 1));
    }
    return 0;
  }

  // Of every algorithm but direct: whom `node` sends to, from whom it
  // receives.
  int To(int round, int node) const {
    switch (algorithm_) {
      case Algorithm::kRing:
        return Wrap(node + 1);
      case Algorithm::kPairwise:
        return Wrap(node + round + 1);
      case Algorithm::kDoubling:
        return node ^ 1 << round;
      default:
        return Wrap(pattern_ == Pattern::kGather ? node - (1 << round)
                                                 : node + (1 << round));
    }
  }
  int From(int round, int node) const {
    if (algorithm_ == Algorithm::kDoubling) return To(round, node);
    return Wrap(2 * node - To(round, node));
  }

  std::vector<Block> BlocksOf(int round, int sender) const {
    std::vector<Block> blocks;
    switch (algorithm_) {
      case Algorithm::kRing:
        blocks.push_back(Own(sender - round));
        break;
      case Algorithm::kPairwise:
        blocks.push_back(Between(sender, To(round, sender)));
        break;
      case Algorithm::kDoubling:
        for (int i = 0; i < 1 << round; ++i) {
          blocks.push_back(Own((sender >> round << round) + i));
        }
        break;
      default:
        AddBruck(round, sender, &blocks);
    }
    return blocks;
  }

  Block Own(int node) const { return Between(node, node); }
  Block Between(int origin, int target) const {
    return {NodeRank(Wrap(origin)), NodeRank(Wrap(target))};
  }

 private:
  int Wrap(int node) const { return (node % count_ + count_) % count_; }

  // Gather: a node has the blocks of itself and those that follow, 2^round of
  // them. Deliver: a block whose distance has bit `round` moves on by it; when
  // it does, the lower bits are behind it.
  void AddBruck(int round, int sender, std::vector<Block>* blocks) const {
    const int reach = 1 << round;
    if (pattern_ == Pattern::kGather) {
      for (int i = 0; i < std::min(reach, count_ - reach); ++i) {
        blocks->push_back(Own(sender + i));
      }
      return;
    }
    for (int distance = reach; distance < count_; ++distance) {
      if ((distance & reach) == 0) continue;
      const int origin = sender - distance % reach;
      blocks->push_back(Between(origin, origin + distance));
    }
  }

  const Algorithm algorithm_;
  const Pattern pattern_;
  const int count_;
};

Round DirectRound(Pattern pattern, int num_nodes, NodeRank self) {
  Round round;
  for (int node = 0; node < num_nodes; ++node) {
    const NodeRank peer(node);
    if (peer == self) continue;
    const bool is_gather = pattern == Pattern::kGather;
    round.sends.push_back({peer, {{self, is_gather ? self : peer}}});
    round.receives.push_back({peer, {{peer, is_gather ? peer : self}}});
  }
  return round;
}

}  // namespace

std::string_view Name(Algorithm algorithm) {
  return kNames[static_cast<size_t>(algorithm)];
}

std::optional<Algorithm> AlgorithmOf(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Algorithm>(found - kNames.begin());
}

bool Does(Algorithm algorithm, Pattern pattern) {
  switch (algorithm) {
    case Algorithm::kDirect:
    case Algorithm::kBruck:
      return pattern != Pattern::kParts;
    case Algorithm::kRing:
    case Algorithm::kDoubling:
      return pattern == Pattern::kGather;
    case Algorithm::kPairwise:
      return pattern == Pattern::kDeliver;
    case Algorithm::kHalving:
      return false;
  }
  return false;
}

bool Does(Algorithm algorithm, Pattern pattern, int num_nodes) {
  return Does(algorithm, pattern) &&
         (algorithm != Algorithm::kDoubling ||
          std::has_single_bit(static_cast<unsigned>(num_nodes)));
}

std::vector<Round> RoutesOf(Algorithm algorithm, Pattern pattern, int num_nodes,
                            NodeRank self) {
  const Nodes nodes(algorithm, pattern, num_nodes);
  std::vector<Round> rounds;
  for (int round = 0; round < nodes.num_rounds(); ++round) {
    if (algorithm == Algorithm::kDirect) {
      rounds.push_back(DirectRound(pattern, num_nodes, self));
      continue;
    }
    const int from = nodes.From(round, self.value());
    rounds.push_back({{{NodeRank(nodes.To(round, self.value())),
                        nodes.BlocksOf(round, self.value())}},
                      {{NodeRank(from), nodes.BlocksOf(round, from)}}});
  }
  return rounds;
}

}  // namespace ballast::transport
