// Hyperparameters of a step between their forms: as workers write them
// (control block), as nodes send them (vote, commit), as the state keeps them.
//
// Threading: pure functions.
#ifndef SERVER_ENGINE_GROUP_VALUES_H_
#define SERVER_ENGINE_GROUP_VALUES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/hyper_parameters.h"
#include "proto/control_block.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::engine {

using GroupList = std::vector<proto::GroupValues>;

v1::StepGroup ToStepGroup(const proto::GroupValues& values);
kernels::HyperParameters ToHyperParameters(const v1::StepGroup& group);

// Bit-wise. InvalidArgument names group, field, both values and both ranks.
absl::Status CheckAgree(const GroupList& a, Rank rank_a, const GroupList& b,
                        Rank rank_b);

// The scalars of a commit, one per group, none if it is skipped. DataLoss if
// there are not as many, of the right size.
absl::StatusOr<std::vector<kernels::StepScalars>> ParseScalars(
    const v1::Commit& commit, size_t num_groups);

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_GROUP_VALUES_H_
