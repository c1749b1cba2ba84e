// In which formats the memory of a job is kept.
#ifndef SERVER_DAEMON_KEPT_KEPT_FORMATS_H_
#define SERVER_DAEMON_KEPT_KEPT_FORMATS_H_

#include "absl/status/status.h"
#include "proto/kept_job.pb.h"

namespace ballast::daemon {

// What this version writes.
v1::KeptFormats OwnFormats();

// FailedPrecondition names the one that this version cannot read.
absl::Status CheckFormats(const v1::KeptFormats& formats);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_KEPT_KEPT_FORMATS_H_
