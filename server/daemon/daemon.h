// The whole daemon of one node: real leaves, wired.
//
//   workers ── WorkerDoor ──▶ Sessions ◀── gRPC ── workers' control sockets
//                                │
//   operators ── AdminDoor ──▶ Control ──▶ Node ──▶ engines, compute pool
//   kubelet ── health            └────▶ metrics page ── Prometheus
//   other daemons ── gRPC ──▶ Rendezvous ◀── UcxPeerPlane ◀── Node
//
// Life: Create (everything listens; jobs that the last daemon left go on) ->
// Run (control thread) -> Drain (signal or operator): nobody new, committed
// steps are finished, workers are told or left to the next daemon, sockets are
// removed, Run returns.
//
// Threading: one thread calls Create, Run and the destructor; it is the
// control thread.
#ifndef SERVER_DAEMON_DAEMON_H_
#define SERVER_DAEMON_DAEMON_H_

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/config.pb.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/random.h"
#include "server/base/thread_pool.h"
#include "server/base/wall_clock.h"
#include "server/daemon/admin_door.h"
#include "server/daemon/control.h"
#include "server/daemon/keeper_process.h"
#include "server/daemon/node.h"
#include "server/daemon/rpc_metrics.h"
#include "server/daemon/signals.h"
#include "server/daemon/stored/snapshot_directory.h"
#include "server/daemon/ucx_peer_plane.h"
#include "server/daemon/worker_door.h"
#include "server/device/host/host_device.h"
#include "server/ipc/keeper_client.h"
#include "server/membership/rendezvous.h"
#include "server/metrics/metrics.h"
#include "server/metrics/metrics_page.h"
#include "server/service/grpc_server.h"
#include "server/snapshot/files/file_system.h"

namespace ballast::daemon {

class Daemon {
 public:
  // `config` passed CheckConfig; signals are blocked. An error says which
  // address or file is the matter, or why jobs that a keeper holds cannot be
  // gone on with. `drops`: names of those that are given up.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(
      const v1::Config& config, std::set<std::string> drops = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Until it is drained.
  void Run();

 private:
  Daemon(const v1::Config& config, std::set<std::string> drops);
  absl::Status CreateCore();
  void OpenSnapshots();
  absl::Status Listen();
  absl::Status TakeOver();
  // A keeper holds all: the next daemon goes on with the jobs.
  bool can_hand_over() const;
  void OnSignal(int number);
  void Drain(const std::string& reason);
  // Waits, by timer, for committed steps and then for the jobs' ends.
  void AwaitIdle(absl::Time deadline);
  void AwaitEmpty(absl::Time deadline);
  void ShutDownServers();
  void RefreshMetrics();

  const v1::Config config_;
  const std::set<std::string> drops_;
  const base::MonotonicClock clock_;
  const base::WallClock wall_clock_;
  base::SystemRandom random_;
  std::unique_ptr<metrics::Metrics> metrics_;
  std::unique_ptr<RpcMetrics> rpc_metrics_;
  std::unique_ptr<base::EventLoop> loop_;
  std::unique_ptr<device::HostDevice> device_;
  std::unique_ptr<snapshot::FileSystem> snapshot_files_;   // null: none
  std::unique_ptr<SnapshotDirectory> snapshot_directory_;  // likewise
  membership::Rendezvous rendezvous_;    // of jobs whose node 0 is here
  std::unique_ptr<UcxPeerPlane> peers_;  // null: off
  std::unique_ptr<KeeperProcess> keeper_process_;  // null: none is started
  std::unique_ptr<ipc::KeeperClient> keeper_;      // null: none is configured
  std::unique_ptr<Node> node_;
  std::unique_ptr<Control> control_;
  // Its threads write to the node's memory: it goes before the node.
  std::unique_ptr<base::ThreadPool> pool_;
  std::unique_ptr<base::ThreadPool> io_;  // of snapshots; likewise
  std::unique_ptr<service::GrpcServer> worker_server_;
  std::unique_ptr<WorkerDoor> worker_door_;
  std::unique_ptr<AdminDoor> admin_door_;
  std::unique_ptr<service::GrpcServer> peer_server_;    // null: off
  std::unique_ptr<service::GrpcServer> health_server_;  // null: off
  std::unique_ptr<metrics::MetricsPage> metrics_page_;  // null: off
  std::unique_ptr<Signals> signals_;
  std::thread shutdown_thread_;
  bool is_draining_ = false;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_DAEMON_H_
