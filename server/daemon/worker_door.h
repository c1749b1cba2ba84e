// Where workers come in: accepts them on the handle socket, tells the
// sessions, and gives their control connection to gRPC.
//
// Threading: control thread only. Borrows sessions, server and random, which
// outlive it.
#ifndef SERVER_DAEMON_WORKER_DOOR_H_
#define SERVER_DAEMON_WORKER_DOOR_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "server/base/event_loop.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/daemon/limited_log.h"
#include "server/ipc/handle_server.h"
#include "server/metrics/metrics.h"
#include "server/service/grpc_server.h"
#include "server/session/sessions.h"

namespace ballast::daemon {

// The content of security.token_file without the end of its line; empty if no
// file is named. InvalidArgument if it is missing, empty or too long.
absl::StatusOr<std::string> ReadToken(const v1::SecurityConfig& config);

// May a peer with this token come in?
absl::Status Admit(const v1::SecurityConfig& config, std::string_view expected,
                   uint32_t own_uid, const ipc::PeerIdentity& peer,
                   std::string_view token);

class WorkerDoor final : public ipc::WorkerAcceptor {
 public:
  struct Parts {
    base::EventLoop* loop;
    base::Random* random;
    session::Sessions* sessions;
    service::GrpcServer* server;
    metrics::Metrics* metrics;
  };
  // Takes the socket; nobody is let in yet. FailedPrecondition if another
  // daemon has it.
  static absl::StatusOr<std::unique_ptr<WorkerDoor>> Open(
      const v1::Config& config, const Parts& parts);

  absl::Status StartAccepting() { return server_->StartAccepting(); }
  void StopAccepting() { server_->StopAccepting(); }

  // A worker that the last daemon left with a keeper, as if it had come now;
  // its key. DataLoss: what was kept is no worker.
  absl::StatusOr<std::string> Adopt(base::Kept worker);

  void OnWorker(std::unique_ptr<ipc::WorkerLink> link,
                base::UniqueFd control_fd) override;
  void OnRefused(const ipc::PeerIdentity& peer,
                 const absl::Status& reason) override;

 private:
  explicit WorkerDoor(const Parts& parts);
  void Connect(std::unique_ptr<ipc::WorkerLink> link, Incarnation incarnation,
               base::UniqueFd control_fd);

  const Parts parts_;
  LimitedLog refusals_;
  LimitedLog probes_;
  std::unique_ptr<ipc::HandleServer> server_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_WORKER_DOOR_H_
