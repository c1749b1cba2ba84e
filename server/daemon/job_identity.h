// What a job is, as stored states and replicas of it say.
//
// Threading: pure functions.
#ifndef SERVER_DAEMON_JOB_IDENTITY_H_
#define SERVER_DAEMON_JOB_IDENTITY_H_

#include <cstdint>
#include <span>

#include "kernels/hyper_parameters.h"
#include "server/session/job_spec.h"
#include "server/snapshot/loader.h"

namespace ballast::daemon {

bool AnyMomentum(std::span<const kernels::HyperParameters> groups);

// What a state must be of, so that the job of `uid` goes on from it.
snapshot::JobIdentity IdentityOf(const session::JobSpec& spec, uint32_t uid);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_IDENTITY_H_
