// What the nodes of a job must agree on before there is a view.
#ifndef SERVER_MEMBERSHIP_JOIN_RULES_H_
#define SERVER_MEMBERSHIP_JOIN_RULES_H_

#include <string>

#include "proto/peer.pb.h"

namespace ballast::membership {

// How the join of `node` differs from node 0's, in words; empty if it does
// not. `num_nodes` is the coordinator's own count.
std::string JoinDifference(int num_nodes, const v1::Join& first, int node,
                           const v1::Join& join);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_JOIN_RULES_H_
