// Who sends which blocks to whom in which round: the exchange algorithms as
// pure tables. A block goes through unchanged, from its origin to one node
// (deliver) or to all (gather), so that no bit depends on the algorithm.
//
//   gather, 4 nodes: what node 0 sends      deliver, 4 nodes: 0 sends
//     direct    0 -> 1,2,3                    direct    01 -> 1  02 -> 2 ...
//     ring      0 -> 1, 3 -> 1, 2 -> 1        pairwise  01 -> 1, 02 -> 2, ...
//     doubling  0 -> 1, {0,1} -> 2            Bruck     {01,03} -> 1,
//     Bruck     0 -> 3, {0,1} -> 2                      {02,32} -> 2
//
// Direct takes one round of N - 1 messages; ring and pairwise N - 1 rounds of
// one message; doubling (N a power of two) and Bruck about log2 N rounds of
// one message. Bruck's delivery forwards: every block travels once for each
// bit of its distance, so it sends more bytes, in fewer messages.
//
// Sources: J. Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", IEEE TPDS 8(11), 1997;
// R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005 (the others).
//
// Threading: pure functions.
#ifndef SERVER_TRANSPORT_ROUTED_ROUTES_H_
#define SERVER_TRANSPORT_ROUTED_ROUTES_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/base/ids.h"
#include "server/transport/transport.h"

namespace ballast::transport {

enum class Algorithm : uint8_t {
  kDirect,
  kRing,      // gather
  kDoubling,  // gather, power-of-two numbers of nodes
  kPairwise,  // deliver
  kBruck,
  // Sums on their way, distance by distance: no routes here, it is arithmetic
  // (server/collective/halving_reducer.h).
  kHalving,
};
inline constexpr int kNumAlgorithms = 6;

std::string_view Name(Algorithm algorithm);
// Nullopt: no such name.
std::optional<Algorithm> AlgorithmOf(std::string_view name);

// Whether the algorithm does this at all, and with so many nodes.
bool Does(Algorithm algorithm, Pattern pattern);
bool Does(Algorithm algorithm, Pattern pattern, int num_nodes);

// `target` counts in deliveries only; it is the origin in gathers.
struct Block {
  NodeRank origin;
  NodeRank target;

  bool operator==(const Block&) const = default;
};

// One message: the blocks in the order in which they follow one another.
struct Hop {
  NodeRank peer;
  std::vector<Block> blocks;
};

struct Round {
  std::vector<Hop> sends;
  std::vector<Hop> receives;
};

// What `self` does, round by round. Does(…, num_nodes) is true.
std::vector<Round> RoutesOf(Algorithm algorithm, Pattern pattern, int num_nodes,
                            NodeRank self);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_ROUTES_H_
