#include "client/worker/ties.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"

namespace ballast::worker {
namespace {

// Addresses of different objects compare as numbers.
uintptr_t Begin(std::span<const std::byte> value) {
  return reinterpret_cast<uintptr_t>(value.data());
}
uintptr_t End(std::span<const std::byte> value) {
  return Begin(value) + value.size();
}

}  // namespace

absl::Status CheckTies(std::span<const std::span<const std::byte>> values,
                       const std::function<std::string(size_t)>& name) {
  std::vector<size_t> order;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].empty()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(Begin(values[a]), a) < std::pair(Begin(values[b]), b);
  });
  // If any two overlap, then so do two neighbours.
  for (size_t k = 1; k < order.size(); ++k) {
    const std::span<const std::byte> first = values[order[k - 1]];
    const std::span<const std::byte> second = values[order[k]];
    if (Begin(second) >= End(first)) continue;
    const size_t a = std::min(order[k - 1], order[k]);
    const size_t b = std::max(order[k - 1], order[k]);
    const bool is_tie =
        Begin(first) == Begin(second) && first.size() == second.size();
    const std::string how =
        is_tie ? "share storage"
               : absl::StrCat("overlap in memory by ",
                              std::min(End(first), End(second)) - Begin(second),
                              " bytes");
    return absl::InvalidArgumentError(absl::StrCat(
        "tensors ", base::Quoted(name(a)), " and ", base::Quoted(name(b)), " ",
        how,
        is_tie ? ": register it once, and read it under that name; if they "
                 "are not tied, give a copy of one"
               : ": what shares storage must be one tensor, all else apart"));
  }
  return absl::OkStatus();
}

}  // namespace ballast::worker
