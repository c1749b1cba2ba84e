// Where the sums of one bucket lie in the scratch window of one node, in fp32
// elements. Every sum of a batch (batch_cut.h) has the batch's length, padding
// included.
//
//   for each owner o, each batch b of o's shard:
//       s0(b) | s1(b) | …   this node's subtrees; one run of bytes, sent to o
//                           (or kept, o = itself)
//   for each peer p, each batch b of the own shard:
//       s0(b) | s1(b) | …   p's subtrees, received
//   with partition groups, for each group g, each batch b of the own shard:
//       s0(b) | s1(b) | …   g's subtrees: made here, of the own group (a group
//                           of one node: s0(b) … above), or received
//
// Owners and peers are places in the own partition group.
//
// Threading: plain values.
#ifndef SERVER_COLLECTIVE_WINDOW_PLAN_H_
#define SERVER_COLLECTIVE_WINDOW_PLAN_H_

#include <cstdint>
#include <vector>

#include "server/base/ids.h"
#include "server/collective/batch_cut.h"
#include "server/collective/tree_plan.h"

namespace ballast::collective {

struct WindowPlan {
  // Where a batch's run begins: by owner, by batch; by contributor, by own
  // batch (of the node itself: among `sums`).
  std::vector<std::vector<int64_t>> sums;
  std::vector<std::vector<int64_t>> received;
  std::vector<std::vector<int64_t>> groups;  // by group, by own batch
  int64_t elements = 0;                      // in all
};

WindowPlan PlanWindow(const BatchCut& cut, const TreePlan& tree, NodeRank node);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_WINDOW_PLAN_H_
