// proto/peer_service.proto for the daemons of other nodes: parses, posts to
// the control thread, translates. Callers are not authenticated: whoever
// reaches listen.peer may take part in a rendezvous (README.md).
//
// Threading: callbacks run on gRPC's threads and only post; replies come from
// the control thread. Borrows all its parts, which outlive the server.
#ifndef SERVER_SERVICE_PEER_SERVICE_H_
#define SERVER_SERVICE_PEER_SERVICE_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>

#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/membership/rendezvous.h"
#include "server/service/rpc_observer.h"

namespace ballast::service {

// No request of another daemon is longer.
inline constexpr int kMaxPeerMessageBytes = 64 << 10;

struct PeerServiceParts {
  base::Executor* executor;
  const base::Clock* clock;
  membership::Rendezvous* rendezvous;
  RpcObserver* observer;  // null: none
};

std::unique_ptr<grpc::Service> MakePeerService(const PeerServiceParts& parts);

}  // namespace ballast::service

#endif  // SERVER_SERVICE_PEER_SERVICE_H_
