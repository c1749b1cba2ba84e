// The daemon's gRPC servers: one for workers, which has no port (each
// connection is a descriptor from the handle socket), one for operators, one
// for health checks (grpc.health.v1 with the services ballast.live and
// ballast.ready, and "" = ready).
//
// Threading: thread-compatible; gRPC brings its own threads.
#ifndef SERVER_SERVICE_GRPC_SERVER_H_
#define SERVER_SERVICE_GRPC_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/unique_fd.h"

namespace ballast::service {

// A model of 100,000 tensors with long names fits (about 100 bytes each).
inline constexpr int kMaxMessageBytes = 32 << 20;

class GrpcServer {
 public:
  // Serves connections that AddConnection hands over, nothing else.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> WithoutPort(
      std::unique_ptr<grpc::Service> service);
  // `address` is "unix:///path" or "host:port"; port 0 takes a free one. A
  // null service: health only. Longer requests are refused.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Listen(
      const std::string& address, std::unique_ptr<grpc::Service> service,
      int max_message_bytes = kMaxMessageBytes);
  ~GrpcServer();  // shuts down at once

  // The peer of a connected stream socket speaks gRPC from now on.
  void AddConnection(base::UniqueFd fd);
  void SetReady(bool is_ready);  // health; live from the start
  // Open calls get `grace`, then they are cancelled.
  void Shutdown(absl::Duration grace);

  const std::string& address() const { return address_; }  // as it is now

 private:
  GrpcServer() = default;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::CallbackGenericService> nothing_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  bool is_shut_down_ = false;
};

}  // namespace ballast::service

#endif  // SERVER_SERVICE_GRPC_SERVER_H_
