// Which sums every node contributes: the maximal subtrees of the canonical
// tree inside its ranks (kernels/canonical_tree.h), of all nodes in rank
// order. The same on every node.
//
//   3 nodes x 2 workers:   node 0   node 1   node 2
//                          [0,2)    [2,4)    [4,6)     3 sums of 2 ranks
//   2 nodes x 3 workers:   [0,2) 2  3 [4,6)            4 sums
//
// With partition groups (layout::Topology), also those inside each group's
// ranks, which are all that crosses between groups:
//
//   4 nodes x 3 workers, 2 of a group:   [0,4) [4,6)  [6,8) [8,12)
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

  // The same of partition groups.
  std::span<const kernels::RankRange> group_ranges() const {
    return group_ranges_;
  }
  std::span<const kernels::RankRange> ranges_of_group(int group) const {
    return group_ranges().subspan(first_of_group_[group],
                                  num_group_ranges(group));
  }
  int num_group_ranges(int group) const {
    return first_of_group_[group + 1] - first_of_group_[group];
  }

  const layout::Topology& topology() const { return topology_; }

 private:
  const layout::Topology topology_;
  std::vector<int> first_;  // of each node in ranges_, and the end
  std::vector<kernels::RankRange> ranges_;
  std::vector<int> first_of_group_;  // of each group in group_ranges_, likewise
  std::vector<kernels::RankRange> group_ranges_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_TREE_PLAN_H_
