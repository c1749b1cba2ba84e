// The one binary tree over ranks that every exact sum follows, so that the
// way ranks are spread over nodes changes no bit (DESIGN 5).
//
//   Tree(first, n): a leaf if n = 1, otherwise
//     Tree(first, l) + Tree(first + l, n - l),  l = largest power of two < n
//
//   n = 6:         +
//             ____/ .____
//            +           +        ranks 0-3 | ranks 4-5
//          _/ ._        / .
//         +     +      4   5
//        / .   / .
//       0   1 2   3
//
// A node that holds ranks [first, first + count) computes the sums of the
// maximal subtrees inside its range; the owner of an element finishes the tree.
#ifndef KERNELS_CANONICAL_TREE_H_
#define KERNELS_CANONICAL_TREE_H_

#include <span>
#include <vector>

namespace ballast::kernels {

struct RankRange {
  int first = 0;
  int count = 0;
  bool operator==(const RankRange&) const = default;
};

// Ranks of the left child of a node over `count` > 1 ranks.
int LeftCount(int count);

// Whether `ranges`, ascending and disjoint, are subtrees of the tree over
// [0, world_size) that cover it: what finishing the tree needs.
bool IsTreeCover(std::span<const RankRange> ranges, int world_size);

// The maximal subtrees of the tree over [0, world_size) that lie inside
// `range`, by first rank: one if the range is a subtree, at most
// 2 * floor(log2(range.count)) + 1 otherwise. Empty for an empty range.
std::vector<RankRange> MaximalSubtrees(RankRange range, int world_size);

}  // namespace ballast::kernels

#endif  // KERNELS_CANONICAL_TREE_H_
