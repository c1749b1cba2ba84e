// What a worker holds and gives back where weights are not resident (a policy's
// secondary_partition=none): one unit per bucket, in their order, and after
// them the frozen tensors, cut into runs of about a bucket's size. Each unit is
// a range of the weight segment, each owner's part of it one too.
//
//   | bucket 0 | bucket 1 | … | frozen run 0 | frozen run 1 |
//   |n0 |n1 |n2|n0 |n1 |n2|   |n0  |n1  |n2  |n0 |n1 |n2    |
//
// Pure arithmetic over a layout, equal wherever the layout is.
//
// Threading: immutable; thread-safe.
#ifndef SERVER_LAYOUT_GATHER_UNITS_H_
#define SERVER_LAYOUT_GATHER_UNITS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "server/base/ids.h"
#include "server/layout/layout.h"

namespace ballast::layout {

// Bytes [begin, end) of the weight segment, alignment gaps included.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool operator==(const ByteRange&) const = default;
};

struct GatherUnit {
  ByteRange bytes;               // all parts, and the gaps between them
  std::vector<ByteRange> parts;  // by owner; empty ones too
  uint64_t payload(int owner) const { return payloads[owner]; }
  std::vector<uint64_t> payloads;  // of the parts: without gaps
};

// Units [first, last]; -1: none (a tensor without elements).
struct UnitRange {
  int first = -1;
  int last = -1;

  bool operator==(const UnitRange&) const = default;
};

class GatherUnits {
 public:
  static constexpr int kMaxFrozenUnits = 1 << 15;

  // `layout` is not kept.
  explicit GatherUnits(const Layout& layout);

  std::span<const GatherUnit> units() const { return units_; }
  const GatherUnit& unit(int index) const { return units_[index]; }
  int size() const { return static_cast<int>(units_.size()); }
  // Frozen ones have no version: they never change.
  bool is_frozen(int index) const { return index >= num_buckets_; }
  UnitRange UnitsOf(TensorId tensor) const { return ranges_[tensor.value()]; }

  // Of all units' parts that `owner` keeps.
  uint64_t owned_bytes(int owner) const;

 private:
  void AddFrozen(const Layout& layout);

  int num_buckets_ = 0;
  std::vector<GatherUnit> units_;
  std::vector<UnitRange> ranges_;  // by tensor
};

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_GATHER_UNITS_H_
