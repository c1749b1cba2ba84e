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
  const layout::Topology& topology = tree.topology();
  const int group = topology.GroupOf(node);
  const int self = topology.OwnerOf(node).value();
  const std::vector<Batch>& own = cut[self];
  for (int i = 0; i < topology.num_owners(); ++i) {
    const NodeRank peer = topology.NodeAt(group, NodeRank(i));
    plan.received.push_back(i == self ? plan.sums[self]
                                      : place(own, tree.num_ranges(peer)));
  }
  if (topology.num_groups() == 1) return plan;
  for (int g = 0; g < topology.num_groups(); ++g) {
    const bool is_made = g == group && topology.num_owners() == 1;
    plan.groups.push_back(is_made ? plan.sums[self]
                                  : place(own, tree.num_group_ranges(g)));
  }
  return plan;
}

}  // namespace ballast::collective
