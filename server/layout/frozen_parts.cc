#include "server/layout/frozen_parts.h"

#include <algorithm>
#include <cstddef>

#include "kernels/dtype.h"
#include "server/layout/gather_units.h"

namespace ballast::layout {
namespace {

bool IsFrozen(const Layout& layout, size_t tensor) {
  return !layout.tensors()[tensor].trainable &&
         layout.places()[tensor].num_elements > 0;
}

FrozenPart PartOf(const Layout& layout, size_t tensor, int64_t begin,
                  int64_t end) {
  const TensorId id(static_cast<int32_t>(tensor));
  const uint64_t size = kernels::SizeOf(layout.tensor(id).dtype);
  return {id, begin, end, layout.place(id).weight_offset + begin * size,
          (end - begin) * size};
}

// Cuts of units and their parts are aligned, so that they cut no element.
std::vector<FrozenPart> GatheredParts(const Layout& layout, NodeRank node) {
  const Topology& topology = layout.topology();
  const GatherUnits units(layout);
  std::vector<FrozenPart> stored;
  size_t next = 0;  // the first tensor that may have bytes in the unit
  for (int u = 0; u < units.size(); ++u) {
    if (!units.is_frozen(u)) continue;
    const ByteRange& part = units.unit(u).parts[topology.OwnerOf(node).value()];
    const bool is_ours = u % topology.num_groups() == topology.GroupOf(node);
    const uint64_t unit_begin = units.unit(u).bytes.begin;
    for (size_t t = next; t < layout.tensors().size(); ++t) {
      if (!IsFrozen(layout, t)) continue;
      const FrozenPart all =
          PartOf(layout, t, 0, layout.places()[t].num_elements);
      const uint64_t end = all.weight_offset + all.size_bytes;
      if (end <= unit_begin) {
        next = t + 1;
        continue;
      }
      if (all.weight_offset >= units.unit(u).bytes.end) break;
      const uint64_t from = std::max(part.begin, all.weight_offset);
      const uint64_t to = std::min(part.end, end);
      if (!is_ours || from >= to) continue;
      const int64_t size = kernels::SizeOf(layout.tensors()[t].dtype);
      stored.push_back(PartOf(
          layout, t, static_cast<int64_t>(from - all.weight_offset) / size,
          static_cast<int64_t>(to - all.weight_offset) / size));
    }
  }
  return stored;
}

}  // namespace

std::vector<FrozenPart> StoredFrozenParts(const Layout& layout, NodeRank node,
                                          bool are_gathered) {
  if (are_gathered) return GatheredParts(layout, node);
  const int num_nodes = layout.topology().num_nodes;
  std::vector<FrozenPart> stored;
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    if (IsFrozen(layout, t) &&
        static_cast<int>(t % num_nodes) == node.value()) {
      stored.push_back(PartOf(layout, t, 0, layout.places()[t].num_elements));
    }
  }
  return stored;
}

}  // namespace ballast::layout
