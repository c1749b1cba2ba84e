// Errors of what was sent between their forms: as a collective measures them,
// as nodes send them (vote).
//
// Threading: pure functions.
#ifndef SERVER_ENGINE_ERROR_VOTES_H_
#define SERVER_ENGINE_ERROR_VOTES_H_

#include "proto/peer.pb.h"
#include "server/collective/error_sums.h"

namespace ballast::engine {

v1::PathErrors ToPathErrors(const collective::PathErrors& errors);

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_ERROR_VOTES_H_
