#include "server/layout/replica_holder.h"

#include <set>

#include "gtest/gtest.h"
#include "server/base/ids.h"
#include "server/layout/types.h"

namespace ballast::layout {
namespace {

// Every shard has one holder beside its own node, every node one source.
TEST(ReplicaHolderTest, IsAnotherNodeForEachOne) {
  for (int nodes = 1; nodes <= 12; ++nodes) {
    for (int owners = 0; owners <= nodes; ++owners) {
      if (owners != 0 && nodes % owners != 0) continue;
      const Topology topology{nodes, 2, owners};
      std::set<NodeRank> holders;
      for (int n = 0; n < nodes; ++n) {
        const NodeRank holder = ReplicaHolder(topology, NodeRank(n));
        EXPECT_EQ(holder == NodeRank(n), nodes == 1) << nodes;
        EXPECT_EQ(ReplicaSource(topology, holder), NodeRank(n));
        if (topology.num_groups() > 1) {
          EXPECT_NE(topology.GroupOf(holder), topology.GroupOf(NodeRank(n)));
        }
        holders.insert(holder);
      }
      EXPECT_EQ(holders.size(), static_cast<size_t>(nodes));
    }
  }
}

}  // namespace
}  // namespace ballast::layout
