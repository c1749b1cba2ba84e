#include "server/transport/routed/routed_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/routed/routed_exchange.h"

namespace ballast::transport {
namespace {

// From places among `nodes` to the nodes.
void Rename(const std::vector<NodeRank>& nodes, std::vector<Round>* rounds) {
  const auto rename = [&nodes](NodeRank* node) {
    *node = nodes[node->value()];
  };
  for (Round& round : *rounds) {
    for (std::vector<Hop>* hops : {&round.sends, &round.receives}) {
      for (Hop& hop : *hops) {
        rename(&hop.peer);
        for (Block& block : hop.blocks) {
          rename(&block.origin);
          rename(&block.target);
        }
      }
    }
  }
}

}  // namespace

RoutedTransport::RoutedTransport(Transport* inner, int num_nodes, Choice choice)
    : inner_(inner), num_nodes_(num_nodes), choice_(std::move(choice)) {}

absl::StatusOr<std::unique_ptr<Exchange>> RoutedTransport::Prepare(
    const ExchangeSpec& spec, ExchangeObserver* observer) {
  if (spec.pattern == Pattern::kParts) return inner_->Prepare(spec, observer);
  // Packing is for host memory.
  ASSIGN_OR_RETURN(const Place place, PlaceIn(spec));
  const Algorithm algorithm =
      inner_->capabilities().moves_device_bytes
          ? Algorithm::kDirect
          : choice_(spec.pattern, place.count, spec.typical_part_bytes);
  Counts& counts = spec.pattern == Pattern::kGather ? gathers_ : deliveries_;
  ++counts[static_cast<size_t>(algorithm)];
  if (algorithm == Algorithm::kDirect) return inner_->Prepare(spec, observer);
  if (spec.phase >> kRoundShift != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("phase ", spec.phase, " is above ", 1 << kRoundShift,
                     ": no room for the number of a round"));
  }
  std::vector<Round> rounds =
      RoutesOf(algorithm, spec.pattern, place.count, NodeRank(place.self));
  if (!spec.nodes.empty()) Rename(spec.nodes, &rounds);
  TurnMemory own;
  ASSIGN_OR_RETURN(std::unique_ptr<Exchange> exchange,
                   RoutedExchange::Create(inner_, rounds, spec,
                                          MemoryOf(spec, &own), observer));
  return exchange;
}

// What a generation had, it keeps as long as its exchanges are there.
TurnMemory* RoutedTransport::MemoryOf(const ExchangeSpec& spec,
                                      TurnMemory* own) {
  if (!spec.turn.has_value()) return own;
  if (spec.generation != generation_) turns_.clear();
  generation_ = spec.generation;
  return &turns_[{spec.phase, *spec.turn}];
}

uint64_t RoutedTransport::shared_bytes() const {
  uint64_t sum = 0;
  for (const auto& [turn, memory] : turns_) sum += memory.bytes();
  return sum;
}

absl::StatusOr<RoutedTransport::Place> RoutedTransport::PlaceIn(
    const ExchangeSpec& spec) const {
  if (spec.nodes.empty()) return Place{self().value(), num_nodes_};
  const auto found = std::ranges::find(spec.nodes, self());
  if (found == spec.nodes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", self().value(), " is none of the ",
                     spec.nodes.size(), " that exchange"));
  }
  return Place{static_cast<int>(found - spec.nodes.begin()),
               static_cast<int>(spec.nodes.size())};
}

}  // namespace ballast::transport
