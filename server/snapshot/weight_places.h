// Where a node keeps the bytes of its job's weight segment: all in one piece,
// or, where weights are not resident (secondary_partition=none), its own parts
// of it alone, each in a place of its own.
//
//   segment   |........|........|........|      offsets are of the segment
//   places    |........|                        on a node that has all of it
//                |..|     |..|     |..|         own parts, anywhere in memory
//
// Threading: immutable; the bytes are whoever's they are.
// Ownership: borrows the bytes.
#ifndef SERVER_SNAPSHOT_WEIGHT_PLACES_H_
#define SERVER_SNAPSHOT_WEIGHT_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"

namespace ballast::snapshot {

class WeightPlaces {
 public:
  struct Part {
    uint64_t begin = 0;  // offset in the segment
    std::span<std::byte> bytes;

    uint64_t end() const { return begin + bytes.size(); }
  };

  WeightPlaces() = default;  // nothing
  explicit WeightPlaces(std::span<std::byte> segment);
  // Without overlap, in any order.
  explicit WeightPlaces(std::vector<Part> parts);

  // All of [begin, end) that is here, in order: `fn` gets where in the segment
  // it begins, and the bytes.
  void ForEach(
      uint64_t begin, uint64_t end,
      absl::FunctionRef<void(uint64_t begin, std::span<std::byte> bytes)> fn)
      const;
  bool Overlaps(uint64_t begin, uint64_t end) const;
  // [begin, begin + size), which one part has; empty if none has all of it.
  std::span<std::byte> Find(uint64_t begin, uint64_t size) const;

 private:
  // The first part that ends after the offset.
  std::vector<Part>::const_iterator After(uint64_t offset) const;

  std::vector<Part> parts_;  // ascending, none empty
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_WEIGHT_PLACES_H_
