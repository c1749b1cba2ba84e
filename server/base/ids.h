// Ids and counters as distinct types, so that two swapped arguments do not
// compile. Values are plain integers; arithmetic is deliberate (`.value()`).
#ifndef SERVER_BASE_IDS_H_
#define SERVER_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {

template <typename Tag, typename Rep>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const Id&) const = default;
  constexpr Id next() const { return Id(value_ + 1); }

  std::string ToString() const { return absl::StrCat(value_); }

  template <typename H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

// Global index of a worker; its index on its node; index of a node.
using Rank = Id<struct RankTag, int32_t>;
using LocalRank = Id<struct LocalRankTag, int32_t>;
using NodeRank = Id<struct NodeRankTag, int32_t>;

// One optimizer iteration; the step whose weights are visible is a
// WeightVersion. Step 1 is the first one; version 0 holds initial weights.
using Step = Id<struct StepTag, int64_t>;
using WeightVersion = Id<struct WeightVersionTag, int64_t>;

// Number of a membership view; only grows. 1 is the first one.
using Generation = Id<struct GenerationTag, int64_t>;

// One life of a worker or daemon process (random 64 bits).
using Incarnation = Id<struct IncarnationTag, uint64_t>;

using BucketId = Id<struct BucketIdTag, int32_t>;
using TensorId = Id<struct TensorIdTag, int32_t>;

}  // namespace ballast

#endif  // SERVER_BASE_IDS_H_
