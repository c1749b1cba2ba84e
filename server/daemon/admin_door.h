// Where operators come in: a Unix socket that only the daemon's user can
// reach, or a port of the loopback interface.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_ADMIN_DOOR_H_
#define SERVER_DAEMON_ADMIN_DOOR_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/event_loop.h"
#include "server/ipc/socket_path.h"
#include "server/service/grpc_server.h"

namespace ballast::daemon {

class AdminDoor {
 public:
  // `address` as in listen.admin; `loop` outlives this.
  static absl::StatusOr<std::unique_ptr<AdminDoor>> Open(
      const std::string& address, std::unique_ptr<grpc::Service> service,
      base::EventLoop* loop);
  ~AdminDoor();

  const std::string& address() const { return address_; }
  // From any thread.
  void Shutdown(absl::Duration grace) { server_->Shutdown(grace); }

 private:
  explicit AdminDoor(base::EventLoop* loop) : loop_(loop) {}
  absl::Status ListenUnix(const std::string& path);
  void OnAcceptable();

  base::EventLoop* const loop_;
  std::string address_;
  std::unique_ptr<service::GrpcServer> server_;
  std::optional<ipc::SocketPath> socket_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_ADMIN_DOOR_H_
