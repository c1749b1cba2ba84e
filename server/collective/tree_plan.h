// Which sums every node contributes: the maximal subtrees of the canonical
// tree inside its ranks (kernels/canonical_tree.h), of all nodes in rank
// order. The same on every node.
//
//   3 nodes x 2 workers:   node 0   node 1   node 2
//                          [0,2)    [2,4)    [4,6)     3 sums of 2 ranks
//   2 nodes x 3 workers:   [0,2) 2  3 [4,6)            4 sums
//
// Threading: immutable, thread-safe.
#ifndef SERVER_COLLECTIVE_TREE_PLAN_H_
#define SERVER_COLLECTIVE_TREE_PLAN_H_

#include <span>
#include <vector>

#include "kernels/canonical_tree.h"
#include "server/base/ids.h"
#include "server/layout/types.h"

namespace ballast::collective {

class TreePlan {
 public:
  explicit TreePlan(const layout::Topology& topology);

  std::span<const kernels::RankRange> ranges() const { return ranges_; }
  std::span<const kernels::RankRange> ranges_of(NodeRank node) const {
    return ranges().subspan(first_[node.value()], num_ranges(node));
  }
  int num_ranges(NodeRank node) const {
    return first_[node.value() + 1] - first_[node.value()];
  }

 private:
  std::vector<kernels::RankRange> ranges_;
  std::vector<int> first_;  // of each node, and the end
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_TREE_PLAN_H_
