#include "client/worker/holdings.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/control_block.h"

namespace ballast::worker {

absl::StatusOr<Holdings> Holdings::Create(std::vector<UnitRange> ranges,
                                          int num_units, int num_frozen) {
  if (num_units < 0 || num_units > proto::kMaxUnits || num_frozen < 0 ||
      num_frozen > num_units) {
    return absl::DataLossError(absl::StrCat("attach reply has ", num_units,
                                            " units, ", num_frozen,
                                            " of them frozen"));
  }
  for (size_t i = 0; i < ranges.size() && num_units > 0; ++i) {
    const UnitRange& range = ranges[i];
    const bool is_none = range.first == -1 && range.last == -1;
    if (!is_none && (range.first < 0 || range.last < range.first ||
                     range.last >= num_units)) {
      return absl::DataLossError(
          absl::StrCat("attach reply puts tensor ", i, " into units [",
                       range.first, ", ", range.last, "] of ", num_units));
    }
  }
  Holdings holdings;
  holdings.is_wanted_.resize(ranges.size());
  holdings.ranges_ = std::move(ranges);
  holdings.units_.resize(num_units);
  holdings.num_frozen_ = num_frozen;
  return holdings;
}

void Holdings::Want(int tensor, Store store) {
  if (is_wanted_[tensor]) return;
  is_wanted_[tensor] = true;
  const UnitRange& range = ranges_[tensor];
  for (int u = range.first; range.first >= 0 && u <= range.last; ++u) {
    if (units_[u].tensors++ == 0) store(u, ++units_[u].request);
  }
}

void Holdings::GiveBack(int tensor, Store store) {
  if (!is_wanted_[tensor]) return;
  is_wanted_[tensor] = false;
  const UnitRange& range = ranges_[tensor];
  for (int u = range.first; range.first >= 0 && u <= range.last; ++u) {
    if (--units_[u].tensors == 0) store(u, ++units_[u].request);
  }
}

bool Holdings::IsHeld(int tensor, int64_t version, Look held) const {
  if (!is_wanted_[tensor]) return false;
  const UnitRange& range = ranges_[tensor];
  for (int u = range.first; range.first >= 0 && u <= range.last; ++u) {
    const uint64_t word = held(u);
    if (!proto::IsHeldFor(word, units_[u].request) ||
        proto::StateOfHeld(word) != proto::HeldState::kHeld ||
        proto::VersionOfHeld(word) != (is_frozen(u) ? 0 : version)) {
      return false;
    }
  }
  return true;
}

bool Holdings::IsRefused(int tensor, Look held) const {
  const UnitRange& range = ranges_[tensor];
  for (int u = range.first; range.first >= 0 && u <= range.last; ++u) {
    const uint64_t word = held(u);
    if (proto::IsHeldFor(word, units_[u].request) &&
        proto::StateOfHeld(word) == proto::HeldState::kRefused) {
      return true;
    }
  }
  return false;
}

}  // namespace ballast::worker
