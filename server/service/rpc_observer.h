// Counts finished calls. Thread-safe: called from gRPC's threads.
#ifndef SERVER_SERVICE_RPC_OBSERVER_H_
#define SERVER_SERVICE_RPC_OBSERVER_H_

#include <string_view>

#include "absl/status/status.h"

namespace ballast::service {

class RpcObserver {
 public:
  virtual ~RpcObserver() = default;
  // `method` is one of a few constants ("Attach").
  virtual void OnRpcDone(std::string_view method,
                         const absl::Status& status) = 0;
};

}  // namespace ballast::service

#endif  // SERVER_SERVICE_RPC_OBSERVER_H_
