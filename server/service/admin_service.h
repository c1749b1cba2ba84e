// proto/admin.proto for operators, on the admin socket.
//
// Threading: as worker_service.h.
#ifndef SERVER_SERVICE_ADMIN_SERVICE_H_
#define SERVER_SERVICE_ADMIN_SERVICE_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/base/executor.h"
#include "server/service/node_control.h"
#include "server/service/rpc_observer.h"

namespace ballast::service {

struct AdminServiceParts {
  base::Executor* executor;
  NodeControl* node;
  RpcObserver* observer;  // null: none
};

std::unique_ptr<grpc::Service> MakeAdminService(const AdminServiceParts& parts);

}  // namespace ballast::service

#endif  // SERVER_SERVICE_ADMIN_SERVICE_H_
