// Which node holds a copy of which node's shard, for jobs that keep replicas:
// in a ring, of the next node; with partition groups, whose nodes tend to be
// near one another, of the same place in the next group.
//
//   4 nodes                 0 ─▶ 1 ─▶ 2 ─▶ 3 ─▶ 0
//   4 nodes, 2 of a group   0 ─▶ 2 ─▶ 0,  1 ─▶ 3 ─▶ 1
//
// Threading: pure functions.
#ifndef SERVER_LAYOUT_REPLICA_HOLDER_H_
#define SERVER_LAYOUT_REPLICA_HOLDER_H_

#include "server/base/ids.h"
#include "server/layout/types.h"

namespace ballast::layout {

inline int ReplicaDistance(const Topology& topology) {
  return topology.num_groups() > 1 ? topology.num_owners() : 1;
}

// Who holds the copy of `node`'s shard; of one node alone: itself, nobody else.
inline NodeRank ReplicaHolder(const Topology& topology, NodeRank node) {
  return NodeRank((node.value() + ReplicaDistance(topology)) %
                  topology.num_nodes);
}

// Whose shard `node` holds a copy of.
inline NodeRank ReplicaSource(const Topology& topology, NodeRank node) {
  return NodeRank(
      (node.value() + topology.num_nodes - ReplicaDistance(topology)) %
      topology.num_nodes);
}

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_REPLICA_HOLDER_H_
