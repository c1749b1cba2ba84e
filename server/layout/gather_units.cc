#include "server/layout/gather_units.h"

#include <algorithm>

#include "kernels/dtype.h"

namespace ballast::layout {
namespace {

constexpr uint64_t kPage = 4096;

constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

uint64_t Overlap(const ByteRange& a, const ByteRange& b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  const uint64_t end = std::min(a.end, b.end);
  return begin < end ? end - begin : 0;
}

ByteRange RangeOf(const Layout& layout, TensorId tensor) {
  const TensorPlace& place = layout.place(tensor);
  const uint64_t size =
      place.num_elements * kernels::SizeOf(layout.tensor(tensor).dtype);
  return {place.weight_offset, place.weight_offset + size};
}

uint64_t Offset(const Layout& layout, TensorId tensor, int64_t element) {
  return layout.place(tensor).weight_offset +
         element * kernels::SizeOf(layout.tensor(tensor).dtype);
}

// Pieces follow one another in the segment (layout.h).
void AddShard(const Layout& layout, const Shard& shard, GatherUnit* unit) {
  ByteRange& range = unit->parts.emplace_back();
  uint64_t& payload = unit->payloads.emplace_back();
  if (shard.pieces.empty()) return;
  range.begin =
      Offset(layout, shard.pieces.front().tensor, shard.pieces.front().begin);
  range.end =
      Offset(layout, shard.pieces.back().tensor, shard.pieces.back().end);
  for (const Piece& piece : shard.pieces) {
    payload +=
        piece.size() * kernels::SizeOf(layout.tensor(piece.tensor).dtype);
  }
}

GatherUnit UnitOf(const Layout& layout, const Bucket& bucket) {
  GatherUnit unit;
  for (const Shard& shard : bucket.shards) AddShard(layout, shard, &unit);
  bool is_first = true;
  for (const ByteRange& part : unit.parts) {
    if (part.empty()) continue;
    if (is_first) unit.bytes.begin = part.begin;
    unit.bytes.end = part.end;
    is_first = false;
  }
  return unit;
}

}  // namespace

GatherUnits::GatherUnits(const Layout& layout)
    : num_buckets_(static_cast<int>(layout.buckets().size())),
      ranges_(layout.tensors().size()) {
  for (const Bucket& bucket : layout.buckets()) {
    units_.push_back(UnitOf(layout, bucket));
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const TensorPlace& place = layout.places()[i];
    ranges_[i] = {place.first_bucket, place.last_bucket};
  }
  AddFrozen(layout);
}

void GatherUnits::AddFrozen(const Layout& layout) {
  std::vector<std::pair<int, ByteRange>> frozen;  // tensors, in their order
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (layout.tensors()[i].trainable || layout.places()[i].num_elements == 0) {
      continue;
    }
    frozen.emplace_back(i, RangeOf(layout, TensorId(static_cast<int32_t>(i))));
  }
  if (frozen.empty()) return;
  const uint64_t begin = frozen.front().second.begin;
  const uint64_t end = frozen.back().second.end;
  const uint64_t unit_bytes =
      RoundUp(std::max(layout.options().bucket_bytes,
                       (end - begin) / kMaxFrozenUnits + 1),
              kPage);
  const uint64_t num_owners = layout.topology().num_owners();
  size_t next = 0;  // the first tensor that may have bytes in the unit
  for (uint64_t at = begin; at < end; at += unit_bytes) {
    GatherUnit& unit = units_.emplace_back();
    unit.bytes = {at, std::min(end, at + unit_bytes)};
    while (frozen[next].second.end <= at) ++next;
    for (uint64_t r = 0; r < num_owners; ++r) {
      const uint64_t size = unit.bytes.size();
      const auto cut = [&](uint64_t n) {
        return at + std::min(size, RoundUp(size * n / num_owners, kAlignment));
      };
      ByteRange& part = unit.parts.emplace_back(ByteRange{cut(r), cut(r + 1)});
      if (part.empty()) part = {};
      uint64_t& payload = unit.payloads.emplace_back();
      for (size_t i = next;
           i < frozen.size() && frozen[i].second.begin < unit.bytes.end; ++i) {
        payload += Overlap(part, frozen[i].second);
      }
    }
  }
  for (const auto& [tensor, range] : frozen) {
    ranges_[tensor] = {
        num_buckets_ + static_cast<int>((range.begin - begin) / unit_bytes),
        num_buckets_ + static_cast<int>((range.end - 1 - begin) / unit_bytes)};
  }
}

uint64_t GatherUnits::owned_bytes(int owner) const {
  uint64_t bytes = 0;
  for (const GatherUnit& unit : units_) bytes += unit.parts[owner].size();
  return bytes;
}

}  // namespace ballast::layout
