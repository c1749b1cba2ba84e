// What an Attach must satisfy, before anything is allocated for it (I26).
// Errors name field, value and rule, or the limit.
//
// Threading: pure functions.
#ifndef SERVER_SESSION_ATTACH_RULES_H_
#define SERVER_SESSION_ATTACH_RULES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/layout/layout.h"
#include "server/session/job_spec.h"
#include "server/session/limits.h"
#include "server/session/local_job.h"

namespace ballast::session {

absl::Status CheckRequest(const AttachRequest& request, const Limits& limits,
                          bool allow_many_nodes);

// Another worker of the job says the same of it; `resume` allows what is held.
absl::Status CheckAgrees(const LocalJob& local, const AttachRequest& request);

// ResourceExhausted: a job of at least `size_bytes` beside `used` ones.
absl::Status CheckRoom(const Limits& limits, uint64_t used, uint64_t size_bytes,
                       const std::string& name);

// InvalidArgument if there is nothing to train.
absl::StatusOr<layout::Layout> MakeLayout(const AttachRequest& request,
                                          uint64_t chunk_bytes,
                                          int max_tensors);

}  // namespace ballast::session

#endif  // SERVER_SESSION_ATTACH_RULES_H_
