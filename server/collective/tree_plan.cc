#include "server/collective/tree_plan.h"

namespace ballast::collective {
namespace {

// Those inside each run of `num_nodes` nodes; `first` gets where each begins.
std::vector<kernels::RankRange> RangesOf(const layout::Topology& topology,
                                         int num_nodes,
                                         std::vector<int>* first) {
  std::vector<kernels::RankRange> ranges;
  for (int node = 0; node < topology.num_nodes; node += num_nodes) {
    first->push_back(static_cast<int>(ranges.size()));
    const kernels::RankRange ranks{topology.FirstRank(NodeRank(node)).value(),
                                   num_nodes * topology.local_world_size};
    for (const kernels::RankRange& range :
         kernels::MaximalSubtrees(ranks, topology.world_size())) {
      ranges.push_back(range);
    }
  }
  first->push_back(static_cast<int>(ranges.size()));
  return ranges;
}

}  // namespace

TreePlan::TreePlan(const layout::Topology& topology)
    : topology_(topology),
      ranges_(RangesOf(topology, 1, &first_)),
      group_ranges_(
          RangesOf(topology, topology.num_owners(), &first_of_group_)) {}

}  // namespace ballast::collective
