// absl::Status and grpc::Status have the same codes; this is the only place
// that converts.
#ifndef SERVER_SERVICE_GRPC_STATUS_H_
#define SERVER_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ballast::service {

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace ballast::service

#endif  // SERVER_SERVICE_GRPC_STATUS_H_
