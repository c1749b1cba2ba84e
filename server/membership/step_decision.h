// What a step comes to once every node has voted: pure arithmetic.
#ifndef SERVER_MEMBERSHIP_STEP_DECISION_H_
#define SERVER_MEMBERSHIP_STEP_DECISION_H_

#include <cstdint>
#include <span>
#include <variant>

#include "absl/status/status.h"
#include "kernels/hyper_parameters.h"
#include "proto/peer.pb.h"
#include "server/membership/error_report.h"

namespace ballast::membership {

// `metered`: see error_report.h; null: nothing is measured.
struct StepRules {
  kernels::OptimizerKind optimizer;
  double gradient_clipping;  // of steps whose workers give none; 0: off
  int64_t optimizer_step;    // applied so far
  int local_world_size;      // names ranks in texts
  const MeteredTensors* metered = nullptr;
};

// DataLoss if the nodes do not show the same weights (delta mode): names which
// differ. `votes` by node rank, at least one.
absl::Status CheckSameWeights(std::span<const v1::Vote* const> votes);

// `errors`: of a commit that is not skipped, what all nodes measured (empty
// where nothing is). An abort without its next_generation if a vote refuses, is
// malformed, or if two nodes hand over different values. `votes` by node rank,
// at least one.
std::variant<v1::Commit, v1::Abort> DecideStep(
    const StepRules& rules, std::span<const v1::Vote* const> votes,
    StepErrors* errors);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_STEP_DECISION_H_
