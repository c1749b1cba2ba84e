#include "server/membership/join_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/membership/rejoin.h"

namespace ballast::membership {
namespace {

const std::string& Canonical(const v1::JobOption& option) {
  return option.canonical().empty() ? option.value() : option.canonical();
}

std::string OptionDifference(const v1::Join& first, int node,
                             const v1::Join& join) {
  const int num_options = std::max(first.options_size(), join.options_size());
  for (int i = 0; i < num_options; ++i) {
    if (i >= first.options_size() || i >= join.options_size() ||
        first.options(i).name() != join.options(i).name()) {
      return absl::StrCat("the daemons of nodes ", node,
                          " and 0 know other options of a job: use one version "
                          "of ballastd");
    }
    const v1::JobOption& here = join.options(i);
    const v1::JobOption& there = first.options(i);
    if (Canonical(here) == Canonical(there)) continue;
    return absl::StrCat(here.name(), " is ", here.value(), " on node ", node,
                        " but ", there.value(),
                        " on node 0; it must be the same on every node");
  }
  return "";
}

}  // namespace

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
  std::string option = OptionDifference(first, node, join);
  if (!option.empty()) return option;
  if (join.layout_digest() != first.layout_digest()) {
    return absl::StrCat("the bucket or chunk size of node ", node,
                        " is not that of node 0");
  }
  if (GoesOn(join) != GoesOn(first)) {
    const int lost = GoesOn(first) ? node : 0;
    return absl::StrCat("node ", lost,
                        " has come without its part of the job's state, which "
                        "node ",
                        GoesOn(first) ? 0 : node, " still holds");
  }
  // How far each has come is the coordinator's affair.
  if (GoesOn(join)) return "";
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
