// How an owner makes the sums of its partition group's subtrees (tree_plan.h)
// from those of the group's nodes: additions in the order of the canonical
// tree, so that groups change no bit.
//
//   nodes of a group    [0,2) [2,3) | [3,4) [4,6)     places 0 1 2 3
//   the group           [0,4) [4,6)                   places 4 5
//     1 = 1 + 2;  4 = 0 + 1;  5 = 3
//
// What it adds may go over a node's sum that is not needed any more.
//
// Threading: pure function.
#ifndef SERVER_COLLECTIVE_GROUP_SUMS_H_
#define SERVER_COLLECTIVE_GROUP_SUMS_H_

#include <span>
#include <vector>

#include "kernels/canonical_tree.h"

namespace ballast::collective {

// Places: the nodes' sums in rank order, and after them the group's.
struct GroupAdd {
  int left = 0;
  int right = -1;  // -1: none, `left` is the sum
  int into = 0;    // may be one of them

  bool operator==(const GroupAdd&) const = default;
};

// `group` are unions of `nodes`, which are subtrees; both ascending.
std::vector<GroupAdd> PlanGroupSums(std::span<const kernels::RankRange> nodes,
                                    std::span<const kernels::RankRange> group);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_GROUP_SUMS_H_
