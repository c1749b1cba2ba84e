// Hyperparameters of a step between their three forms: as workers write them
// (control block), as nodes send them (vote, commit), as the state keeps them.
//
// Threading: pure functions.
#ifndef SERVER_ENGINE_GROUP_VALUES_H_
#define SERVER_ENGINE_GROUP_VALUES_H_

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/hyper_parameters.h"
#include "proto/control_block.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"

namespace ballast::engine {

using GroupList = std::vector<proto::GroupValues>;

v1::StepGroup ToStepGroup(const proto::GroupValues& values);
kernels::HyperParameters ToHyperParameters(const v1::StepGroup& group);

// Bit-wise; `by_rank` holds one list per local rank, the first of them is rank
// `first`. InvalidArgument names group, field, both values and both ranks.
absl::Status CheckRanksAgree(std::span<const GroupList> by_rank, Rank first);

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_GROUP_VALUES_H_
