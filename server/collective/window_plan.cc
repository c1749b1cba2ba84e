#include "server/collective/window_plan.h"

namespace ballast::collective {

WindowPlan PlanWindow(const layout::Bucket& bucket, const TreePlan& tree,
                      NodeRank node) {
  WindowPlan plan;
  for (const layout::Shard& shard : bucket.shards) {
    plan.sums.push_back(plan.elements);
    plan.elements += SliceElements(shard) * tree.num_ranges(node);
  }
  const int64_t own = SliceElements(bucket.shards[node.value()]);
  for (const layout::Shard& shard : bucket.shards) {
    plan.received.push_back(plan.elements);
    if (shard.owner == node) continue;
    plan.elements += own * tree.num_ranges(shard.owner);
  }
  return plan;
}

}  // namespace ballast::collective
