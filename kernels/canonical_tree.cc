#include "kernels/canonical_tree.h"

#include <bit>

namespace ballast::kernels {
namespace {

void Collect(RankRange node, RankRange wanted, std::vector<RankRange>* out) {
  const int node_end = node.first + node.count;
  const int wanted_end = wanted.first + wanted.count;
  if (node_end <= wanted.first || wanted_end <= node.first) return;
  if (wanted.first <= node.first && node_end <= wanted_end) {
    out->push_back(node);
    return;
  }
  const int left = LeftCount(node.count);
  Collect({node.first, left}, wanted, out);
  Collect({node.first + left, node.count - left}, wanted, out);
}

// Whether the ranges from `*next` on make up `node`; moves *next behind them.
bool Covers(std::span<const RankRange> ranges, RankRange node, size_t* next) {
  if (*next == ranges.size()) return false;
  if (ranges[*next] == node) {
    ++*next;
    return true;
  }
  if (node.count <= 1) return false;
  const int left = LeftCount(node.count);
  return Covers(ranges, {node.first, left}, next) &&
         Covers(ranges, {node.first + left, node.count - left}, next);
}

}  // namespace

int LeftCount(int count) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

bool IsTreeCover(std::span<const RankRange> ranges, int world_size) {
  if (world_size < 1) return false;
  size_t next = 0;
  return Covers(ranges, {0, world_size}, &next) && next == ranges.size();
}

std::vector<RankRange> MaximalSubtrees(RankRange range, int world_size) {
  std::vector<RankRange> subtrees;
  if (range.count > 0 && world_size > 0) {
    Collect({0, world_size}, range, &subtrees);
  }
  return subtrees;
}

}  // namespace ballast::kernels
