#include "server/collective/tree_plan.h"

namespace ballast::collective {

TreePlan::TreePlan(const layout::Topology& topology) {
  for (int node = 0; node < topology.num_nodes; ++node) {
    first_.push_back(static_cast<int>(ranges_.size()));
    const kernels::RankRange ranks{topology.FirstRank(NodeRank(node)).value(),
                                   topology.local_world_size};
    for (const kernels::RankRange& range :
         kernels::MaximalSubtrees(ranks, topology.world_size())) {
      ranges_.push_back(range);
    }
  }
  first_.push_back(static_cast<int>(ranges_.size()));
}

}  // namespace ballast::collective
