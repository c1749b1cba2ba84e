#include "server/collective/window_plan.h"

namespace ballast::collective {

WindowPlan PlanWindow(const BatchCut& cut, const TreePlan& tree,
                      NodeRank node) {
  WindowPlan plan;
  const auto place = [&plan](const std::vector<Batch>& batches, int num_sums) {
    std::vector<int64_t> begins;
    for (const Batch& batch : batches) {
      begins.push_back(plan.elements);
      plan.elements += num_sums * batch.elements();
    }
    return begins;
  };
  for (const std::vector<Batch>& batches : cut) {
    plan.sums.push_back(place(batches, tree.num_ranges(node)));
  }
  const std::vector<Batch>& own = cut[node.value()];
  for (size_t peer = 0; peer < cut.size(); ++peer) {
    const NodeRank rank(static_cast<int32_t>(peer));
    plan.received.push_back(rank == node ? plan.sums[peer]
                                         : place(own, tree.num_ranges(rank)));
  }
  return plan;
}

}  // namespace ballast::collective
