#include "server/snapshot/weight_places.h"

#include <algorithm>
#include <utility>

namespace ballast::snapshot {

WeightPlaces::WeightPlaces(std::span<std::byte> segment)
    : WeightPlaces(std::vector<Part>{{0, segment}}) {}

WeightPlaces::WeightPlaces(std::vector<Part> parts) : parts_(std::move(parts)) {
  std::erase_if(parts_, [](const Part& part) { return part.bytes.empty(); });
  std::ranges::sort(parts_, {}, &Part::begin);
}

std::vector<WeightPlaces::Part>::const_iterator WeightPlaces::After(
    uint64_t offset) const {
  return std::ranges::upper_bound(parts_, offset, {}, &Part::end);
}

void WeightPlaces::ForEach(
    uint64_t begin, uint64_t end,
    absl::FunctionRef<void(uint64_t begin, std::span<std::byte> bytes)> fn)
    const {
  for (auto it = After(begin); it != parts_.end() && it->begin < end; ++it) {
    const uint64_t from = std::max(begin, it->begin);
    const uint64_t to = std::min(end, it->end());
    if (from < to) fn(from, it->bytes.subspan(from - it->begin, to - from));
  }
}

bool WeightPlaces::Overlaps(uint64_t begin, uint64_t end) const {
  const auto it = After(begin);
  return begin < end && it != parts_.end() && it->begin < end;
}

std::span<std::byte> WeightPlaces::Find(uint64_t begin, uint64_t size) const {
  const auto it = After(begin);
  if (it == parts_.end() || it->begin > begin || it->end() - begin < size) {
    return {};
  }
  return it->bytes.subspan(begin - it->begin, size);
}

}  // namespace ballast::snapshot
