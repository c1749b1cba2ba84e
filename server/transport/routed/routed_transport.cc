#include "server/transport/routed/routed_transport.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/routed/routed_exchange.h"

namespace ballast::transport {

RoutedTransport::RoutedTransport(Transport* inner, int num_nodes, Choice choice)
    : inner_(inner), num_nodes_(num_nodes), choice_(std::move(choice)) {}

absl::StatusOr<std::unique_ptr<Exchange>> RoutedTransport::Prepare(
    const ExchangeSpec& spec, ExchangeObserver* observer) {
  if (spec.pattern == Pattern::kParts) return inner_->Prepare(spec, observer);
  // Packing is for host memory.
  const Algorithm algorithm =
      inner_->capabilities().moves_device_bytes
          ? Algorithm::kDirect
          : choice_(spec.pattern, spec.typical_part_bytes);
  Counts& counts = spec.pattern == Pattern::kGather ? gathers_ : deliveries_;
  ++counts[static_cast<size_t>(algorithm)];
  if (algorithm == Algorithm::kDirect) return inner_->Prepare(spec, observer);
  if (spec.phase >> kRoundShift != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("phase ", spec.phase, " is above ", 1 << kRoundShift,
                     ": no room for the number of a round"));
  }
  ASSIGN_OR_RETURN(
      std::unique_ptr<Exchange> exchange,
      RoutedExchange::Create(
          inner_, RoutesOf(algorithm, spec.pattern, num_nodes_, self()), spec,
          observer));
  return exchange;
}

}  // namespace ballast::transport
