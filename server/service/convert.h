// Between the messages of proto/worker.proto and session's plain values.
//
// Threading: pure functions.
#ifndef SERVER_SERVICE_CONVERT_H_
#define SERVER_SERVICE_CONVERT_H_

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"
#include "server/session/job_spec.h"

namespace ballast::service {

// InvalidArgument names the field and the value (missing messages, unknown
// enumerators, numbers outside their type). Everything else is Sessions' to
// check.
absl::StatusOr<session::AttachRequest> FromProto(
    const v1::AttachRequest& request);

// The inverse, but for a stored state that was found.
v1::AttachRequest ToProto(const session::AttachRequest& request);

v1::AttachReply ToProto(const session::AttachReply& reply);
v1::BeginReply ToProto(const session::BeginReply& reply);

}  // namespace ballast::service

#endif  // SERVER_SERVICE_CONVERT_H_
