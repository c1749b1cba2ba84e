// The right to answer one call, exactly once: if it is dropped unanswered
// (its function was queued when the executor stopped) the caller hears
// Unavailable, and the server's shutdown does not wait for it.
//
// Threading: thread-compatible; moves from gRPC's thread to the control
// thread with the posted function.
#ifndef SERVER_SERVICE_RESPONDER_H_
#define SERVER_SERVICE_RESPONDER_H_

#include <grpcpp/support/server_callback.h>

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/service/grpc_status.h"
#include "server/service/rpc_observer.h"

namespace ballast::service {

class Responder {
 public:
  Responder(grpc::ServerUnaryReactor* reactor, std::string_view method,
            RpcObserver* observer)
      : reactor_(reactor), method_(method), observer_(observer) {}
  ~Responder() { Finish(absl::UnavailableError("daemon is stopping")); }

  Responder(Responder&& other) noexcept
      : reactor_(std::exchange(other.reactor_, nullptr)),
        method_(other.method_),
        observer_(other.observer_) {}
  Responder& operator=(Responder&&) = delete;

  // Does nothing after the first time.
  void Finish(const absl::Status& status) {
    grpc::ServerUnaryReactor* const reactor = std::exchange(reactor_, nullptr);
    if (reactor == nullptr) return;
    if (observer_ != nullptr) observer_->OnRpcDone(method_, status);
    reactor->Finish(ToGrpc(status));
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  const std::string_view method_;
  RpcObserver* const observer_;
};

}  // namespace ballast::service

#endif  // SERVER_SERVICE_RESPONDER_H_
