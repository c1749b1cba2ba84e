// A job's error budget (`max_relative_error`) as a pure function: which
// tensors get another codec with the next step, from the errors of this one.
//
//   error of a tensor on a path > budget      one codec wider, at once:
//                                             int2 -> int4 -> int8 -> none
//   what the narrower one would have cost     one codec narrower, never
//   <= half the budget, kCalmSteps times      below the policy's
//
// The narrower codec is tried beside the one in force, on the sampled cells,
// so that nothing is guessed; the margin and the count keep a tensor from
// going to and fro. Steps in which it is not its turn count as nothing.
#ifndef SERVER_MEMBERSHIP_ERROR_BUDGET_H_
#define SERVER_MEMBERSHIP_ERROR_BUDGET_H_

#include <array>
#include <vector>

#include "proto/peer.pb.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"
#include "server/membership/error_report.h"

namespace ballast::membership {

inline constexpr int kCalmSteps = 100;
inline constexpr double kCalmShare = 0.5;  // of the budget

struct BudgetRules {
  double max_relative_error = 0;  // 0: none, nothing ever changes
  // What the policy gives the metered tensors.
  std::array<std::vector<layout::CodecId>, layout::kNumPaths> codecs = {};
};

struct TensorBudget {
  layout::CodecId codec = layout::CodecId::kNone;
  int calm = 0;  // measured steps in which the narrower codec would have done

  bool operator==(const TensorBudget&) const = default;
};

using BudgetState = std::array<std::vector<TensorBudget>, layout::kNumPaths>;

BudgetState InitialBudgetState(const BudgetRules& rules);

// In the order of the paths and tensors. `errors` are of tensors that the
// rules have.
std::vector<v1::CodecChange> DecideBudget(const BudgetRules& rules,
                                          const MeteredTensors& metered,
                                          const StepErrors& errors,
                                          BudgetState* state);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_ERROR_BUDGET_H_
