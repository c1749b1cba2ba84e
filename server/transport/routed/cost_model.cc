#include "server/transport/routed/cost_model.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_format.h"

namespace ballast::transport {
namespace {

// How much cheaper a forwarding algorithm must look before it is believed.
constexpr double kClearly = 0.95;

// What a byte costs more where several nodes send to one at once: their
// streams meet at its link, which is as slow in as theirs are out. Four nodes
// on links of 250 Mbit/s lose 4 to 7 % (`tcp_all` of tests/bench/RESULTS.md).
constexpr double kMeeting = 1.1;

int CeilLog2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// Blocks that one node sends in Bruck's delivery: the distances below N, each
// as often as it has bits.
int64_t BruckBlocks(int num_nodes) {
  int64_t blocks = 0;
  for (int distance = 1; distance < num_nodes; ++distance) {
    blocks += std::popcount(static_cast<unsigned>(distance));
  }
  return blocks;
}

struct Work {
  double rounds = 0;
  double messages = 0;
  double blocks_sent = 0;
  double blocks_copied = 0;
  bool is_meeting = false;  // several nodes send to one at once
};

Work WorkOf(Algorithm algorithm, Pattern pattern, int num_nodes) {
  const double others = num_nodes - 1;
  const double log2 = CeilLog2(num_nodes);
  switch (algorithm) {
    case Algorithm::kDirect:
      return {1, others, others, 0, num_nodes > 2};
    case Algorithm::kRing:
    case Algorithm::kPairwise:
      return {others, others, others, 0};
    case Algorithm::kDoubling:
      return {log2, log2, others, 2 * others};
    case Algorithm::kBruck: {
      if (pattern == Pattern::kGather) return {log2, log2, others, 2 * others};
      const double blocks = static_cast<double>(BruckBlocks(num_nodes));
      return {log2, log2, blocks, 2 * blocks};
    }
    // Each add reads and writes what direct adds only once, at the owner.
    case Algorithm::kHalving:
      return {log2, log2, others, others};
  }
  return {};
}

}  // namespace

LinkCost Worst(const LinkCost& a, const LinkCost& b) {
  return {std::max(a.latency, b.latency),
          std::max(a.per_message, b.per_message),
          std::max(a.per_byte, b.per_byte),
          std::max(a.per_copied_byte, b.per_copied_byte)};
}

std::string ToText(const LinkCost& cost) {
  return absl::StrFormat("latency %.0f us, %.0f us a message, %.0f MB/s",
                         cost.latency * 1e6, cost.per_message * 1e6,
                         cost.per_byte > 0 ? 1e-6 / cost.per_byte : 0);
}

double Predict(const LinkCost& cost, Algorithm algorithm, Pattern pattern,
               int num_nodes, uint64_t part_bytes) {
  if (num_nodes < 2) return 0;
  const Work work = WorkOf(algorithm, pattern, num_nodes);
  const double bytes = static_cast<double>(part_bytes);
  const double per_byte = cost.per_byte * (work.is_meeting ? kMeeting : 1);
  return work.rounds * cost.latency + work.messages * cost.per_message +
         work.blocks_sent * bytes * per_byte +
         work.blocks_copied * bytes * cost.per_copied_byte;
}

Algorithm Choose(const LinkCost& cost, Pattern pattern, int num_nodes,
                 uint64_t part_bytes, std::optional<Algorithm> forced) {
  if (forced.has_value()) {
    return Does(*forced, pattern, num_nodes) ? *forced : Algorithm::kBruck;
  }
  Algorithm best = Algorithm::kDirect;
  double bound = kClearly * Predict(cost, best, pattern, num_nodes, part_bytes);
  for (int i = 1; i < kNumAlgorithms; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    if (!Does(algorithm, pattern, num_nodes)) continue;
    const bool packs = WorkOf(algorithm, pattern, num_nodes).blocks_copied > 0;
    if (packs && part_bytes > kMaxPackedBytes) continue;
    const double seconds =
        Predict(cost, algorithm, pattern, num_nodes, part_bytes);
    if (seconds < bound) {
      best = algorithm;
      bound = seconds;
    }
  }
  return best;
}

Algorithm ChooseReduction(const LinkCost& cost, int num_nodes,
                          uint64_t part_bytes, bool can_halve,
                          std::optional<Algorithm> forced) {
  if (forced == Algorithm::kHalving) {
    return can_halve ? Algorithm::kHalving : Algorithm::kDirect;
  }
  const Algorithm delivery =
      Choose(cost, Pattern::kDeliver, num_nodes, part_bytes, forced);
  if (!can_halve || forced.has_value()) return delivery;
  const auto seconds = [&](Algorithm algorithm) {
    return Predict(cost, algorithm, Pattern::kDeliver, num_nodes, part_bytes);
  };
  return seconds(Algorithm::kHalving) < kClearly * seconds(delivery)
             ? Algorithm::kHalving
             : delivery;
}

}  // namespace ballast::transport
