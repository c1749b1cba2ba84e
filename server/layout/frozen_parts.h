// Which elements of the frozen tensors a node stores in a snapshot: together
// the nodes store each once. Where every node has all weights, tensor t is
// node t mod N's; where they are gathered (gather_units.h), a node has its own
// part of each unit, and stores it: of partition groups, which have the same
// parts, group g of G those of units u with u mod G = g.
//
// Threading: pure functions.
#ifndef SERVER_LAYOUT_FROZEN_PARTS_H_
#define SERVER_LAYOUT_FROZEN_PARTS_H_

#include <cstdint>
#include <vector>

#include "server/base/ids.h"
#include "server/layout/layout.h"

namespace ballast::layout {

// A run of elements [begin, end) of a tensor, not empty.
struct FrozenPart {
  TensorId tensor;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t weight_offset = 0;  // bytes, in the weight segment
  uint64_t size_bytes = 0;

  bool operator==(const FrozenPart&) const = default;
};

// In the order of units, and of tensors in them.
std::vector<FrozenPart> StoredFrozenParts(const Layout& layout, NodeRank node,
                                          bool are_gathered);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_FROZEN_PARTS_H_
