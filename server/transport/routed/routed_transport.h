// Exchanges by other ways than straight from node to node: the rounds of an
// exchange algorithm, each an exchange of the transport below. What gathers
// and deliveries come to is the same bytes in the same places, whichever is
// chosen; exchanges of no pattern, and what goes directly, pass through.
//
//   RoutedTransport routed(links->transport(), num_nodes, choose);
//   routed.Prepare(spec, observer);    // spec.pattern == Pattern::kGather
//
// Blocks that a node only hands on, and messages of several blocks, take
// memory of their own, which exchanges that take turns share
// (ExchangeSpec::turn); a message of one block goes from and to the parts'
// memory. Packing runs on the control thread: algorithms that pack are
// for small parts (cost_model.h).
//
// Unlike a single exchange, one that takes several rounds can only be posted
// again after Cancel if all nodes cancel and post it again, as they do for a
// new generation.
//
// Counters: payload is what went through this node's messages, forwarded
// blocks included.
//
// Threading: control thread only.
// Lifetime: borrows the transport below.
#ifndef SERVER_TRANSPORT_ROUTED_ROUTED_TRANSPORT_H_
#define SERVER_TRANSPORT_ROUTED_ROUTED_TRANSPORT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/transport/routed/routes.h"
#include "server/transport/routed/turn_memory.h"
#include "server/transport/transport.h"

namespace ballast::transport {

class RoutedTransport final : public Transport {
 public:
  // The same answer on all nodes; an algorithm that does the pattern between
  // so many.
  using Choice = std::function<Algorithm(Pattern pattern, int num_nodes,
                                         uint64_t part_bytes)>;
  // Exchanges prepared so far.
  using Counts = std::array<int64_t, kNumAlgorithms>;

  RoutedTransport(Transport* inner, int num_nodes, Choice choice);

  const Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }

  // Also InvalidArgument: the phase leaves no room for the number of a round
  // (its upper byte); this node is none of the spec's.
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const ExchangeSpec& spec, ExchangeObserver* observer) override;

  const Counts& counts(Pattern pattern) const {
    return pattern == Pattern::kGather ? gathers_ : deliveries_;
  }
  // That exchanges of this generation share.
  uint64_t shared_bytes() const;

 private:
  TurnMemory* MemoryOf(const ExchangeSpec& spec, TurnMemory* own);
  struct Place {
    int self = 0;  // among `count` nodes
    int count = 0;
  };
  absl::StatusOr<Place> PlaceIn(const ExchangeSpec& spec) const;

  Transport* const inner_;
  const int num_nodes_;
  const Choice choice_;
  Counts gathers_{};
  Counts deliveries_{};
  Generation generation_;  // of the exchanges below
  std::map<std::pair<uint32_t, int>, TurnMemory> turns_;  // by phase and turn
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_ROUTED_ROUTED_TRANSPORT_H_
