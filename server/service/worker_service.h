// proto/worker.proto for the workers of this node: parses, posts to the
// control thread, translates. A caller is who its key says (metadata
// "ballast-key"), never its peer() address.
//
// Threading: callbacks run on gRPC's threads and only post; replies come from
// the control thread. Borrows all its parts, which outlive the server.
#ifndef SERVER_SERVICE_WORKER_SERVICE_H_
#define SERVER_SERVICE_WORKER_SERVICE_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/base/executor.h"
#include "server/service/node_control.h"
#include "server/service/rpc_observer.h"
#include "server/session/sessions.h"

namespace ballast::service {

struct WorkerServiceParts {
  base::Executor* executor;
  session::Sessions* sessions;
  NodeControl* node;
  RpcObserver* observer;  // null: none
};

std::unique_ptr<grpc::Service> MakeWorkerService(
    const WorkerServiceParts& parts);

}  // namespace ballast::service

#endif  // SERVER_SERVICE_WORKER_SERVICE_H_
