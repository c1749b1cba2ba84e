#include "server/membership/join_rules.h"

#include "absl/strings/str_cat.h"

namespace ballast::membership {

std::string JoinDifference(int num_nodes, const v1::Join& first, int node,
                           const v1::Join& join) {
  if (join.num_nodes() != num_nodes) {
    return absl::StrCat("the number of nodes is ", join.num_nodes(),
                        " on node ", node, " but ", num_nodes, " on node 0");
  }
  if (join.local_world_size() != first.local_world_size()) {
    return absl::StrCat("the local world size is ", join.local_world_size(),
                        " on node ", node, " but ", first.local_world_size(),
                        " on node 0; it must be the same on every node");
  }
  if (join.model_digest() != first.model_digest()) {
    return absl::StrCat(
        "the tensors (names, order, shapes, dtypes, frozen, "
        "param groups) of node ",
        node, " are not those of node 0");
  }
  if (join.layout_digest() != first.layout_digest()) {
    return absl::StrCat("the bucket or chunk size of node ", node,
                        " is not that of node 0");
  }
  if (join.job_digest() != first.job_digest()) {
    return absl::StrCat(
        "the optimizer, gradient clipping or exchange policy of node ", node,
        " is not that of node 0");
  }
  if (join.has_state() != first.has_state() ||
      join.weight_version() != first.weight_version()) {
    return absl::StrCat(
        "node ", node, " holds ",
        join.has_state() ? absl::StrCat("step ", join.weight_version())
                         : std::string("no state"),
        " but node 0 holds ",
        first.has_state() ? absl::StrCat("step ", first.weight_version())
                          : std::string("no state"));
  }
  return "";
}

}  // namespace ballast::membership
