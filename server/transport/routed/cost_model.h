// What an exchange algorithm costs on given links, and which is the cheapest.
//
//   seconds = sum over rounds: latency + messages * per_message
//           + bytes sent * per_byte + bytes packed and unpacked * per_copied
//
// the α-β-γ model of the literature (R. Thakur et al., 2005; per_message is
// the overhead o of LogP, D. Culler et al., PPoPP 1993), with the bytes that a
// node sends, not the links it crosses: nodes hang on one switch. A byte costs
// a tenth more where several nodes send to one at once, as direct does from
// three nodes on: large parts go in a ring, or by pairs. Parts of more than
// kMaxPackedBytes are not packed, unless that is forced: packing is work of the
// control thread.
//
// Threading: pure functions of plain values.
#ifndef SERVER_TRANSPORT_ROUTED_COST_MODEL_H_
#define SERVER_TRANSPORT_ROUTED_COST_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "server/transport/routed/routes.h"
#include "server/transport/transport.h"

namespace ballast::transport {

inline constexpr uint64_t kMaxPackedBytes = 64 << 10;

// Seconds. All zero: nothing is known, direct is as good as any.
struct LinkCost {
  double latency = 0;
  double per_message = 0;
  double per_byte = 0;
  double per_copied_byte = 0;

  bool operator==(const LinkCost&) const = default;
};

// The worse of each: what all nodes choose by.
LinkCost Worst(const LinkCost& a, const LinkCost& b);

// "latency 31 us, 9 us a message, 118 MB/s"
std::string ToText(const LinkCost& cost);

// Of one exchange whose parts have `part_bytes` each. Does(…) is true.
double Predict(const LinkCost& cost, Algorithm algorithm, Pattern pattern,
               int num_nodes, uint64_t part_bytes);

// The cheapest; direct unless another is clearly cheaper, so that nothing is
// forwarded for nothing. `forced` does the pattern; where it does not do with
// so many nodes (doubling), Bruck stands in for it.
Algorithm Choose(const LinkCost& cost, Pattern pattern, int num_nodes,
                 uint64_t part_bytes, std::optional<Algorithm> forced);

// Of reductions: Pattern::kDeliver, or halving where the sums can be added on
// their way (`can_halve`). Forced halving counts there; elsewhere direct.
Algorithm ChooseReduction(const LinkCost& cost, int num_nodes,
                          uint64_t part_bytes, bool can_halve,
                          std::optional<Algorithm> forced);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_COST_MODEL_H_
