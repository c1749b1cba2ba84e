// What the hyperparameters of a param group may be: PyTorch's own rules, plus
// finite. Values come from workers, at attach and with each step.
//
// Threading: pure functions.
#ifndef SERVER_SESSION_GROUP_RULES_H_
#define SERVER_SESSION_GROUP_RULES_H_

#include <span>

#include "absl/status/status.h"
#include "kernels/hyper_parameters.h"
#include "proto/control_block.h"

namespace ballast::session {

// InvalidArgument names group, field and value; so it does for a max_norm or a
// load that is not the same in all groups. Fields that `kind` does not
// have are not looked at. `has_momentum`: the job keeps momentum buffers; a
// momentum that is not zero is refused without.
absl::Status CheckGroups(kernels::OptimizerKind kind, bool has_momentum,
                         std::span<const proto::GroupValues> groups);

bool AnyMomentum(std::span<const kernels::HyperParameters> groups);

proto::GroupValues ToValues(const kernels::HyperParameters& group);
kernels::HyperParameters FromValues(const proto::GroupValues& values);

}  // namespace ballast::session

#endif  // SERVER_SESSION_GROUP_RULES_H_
