// Errors of what was sent between their forms: as a collective measures them,
// as nodes send them (vote); and what a budget made of them (commit).
//
// Threading: pure functions.
#ifndef SERVER_ENGINE_ERROR_VOTES_H_
#define SERVER_ENGINE_ERROR_VOTES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "server/collective/error_sums.h"
#include "server/layout/exchange_plan.h"

namespace ballast::engine {

v1::PathErrors ToPathErrors(const collective::PathErrors& errors);

// DataLoss if a path or codec is no number of one (I27). Whether it fits the
// job is the plan's to say.
absl::StatusOr<std::vector<layout::CodecChange>> ParseCodecChanges(
    const v1::Commit& commit);

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_ERROR_VOTES_H_
