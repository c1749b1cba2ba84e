// Where the sums of one bucket lie in the scratch window of one node, in fp32
// elements. An owner's slice is [bucket_begin, bucket_end) of its shard; every
// sum of it has the slice's length, padding included.
//
//   for each owner o:   s0(slice o) | s1(slice o) | …   this node's subtrees;
//                       one run of bytes, sent to o (or kept, o = itself)
//   for each peer p:    s0(own slice) | s1 | …          p's subtrees, received
//
// Threading: plain values.
#ifndef SERVER_COLLECTIVE_WINDOW_PLAN_H_
#define SERVER_COLLECTIVE_WINDOW_PLAN_H_

#include <cstdint>
#include <vector>

#include "server/base/ids.h"
#include "server/collective/tree_plan.h"
#include "server/layout/types.h"

namespace ballast::collective {

struct WindowPlan {
  std::vector<int64_t> sums;      // per owner: where its run begins
  std::vector<int64_t> received;  // per peer; own entry unused
  int64_t elements = 0;           // in all
};

inline int64_t SliceElements(const layout::Shard& shard) {
  return shard.bucket_end - shard.bucket_begin;
}

WindowPlan PlanWindow(const layout::Bucket& bucket, const TreePlan& tree,
                      NodeRank node);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_WINDOW_PLAN_H_
