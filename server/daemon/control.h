// What operators and workers may ask of the daemon as a whole, from the node's
// jobs and the daemon's own addresses.
//
// Threading: control thread only, except Version (any thread).
#ifndef SERVER_DAEMON_CONTROL_H_
#define SERVER_DAEMON_CONTROL_H_

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/daemon/node.h"
#include "server/daemon/stored/snapshot_directory.h"
#include "server/device/device.h"
#include "server/ipc/keeper_client.h"
#include "server/metrics/metrics.h"
#include "server/service/node_control.h"

namespace ballast::daemon {

// As they are: ports that were 0 are filled in, "off" is empty.
struct Addresses {
  std::string workers;
  std::string admin;
  std::string http;
  std::string health;
  std::string peer;
};

class Control final : public service::NodeControl {
 public:
  struct Parts {
    const base::Clock* clock;
    Node* node;
    device::Device* device;
    metrics::Metrics* metrics;
  };
  // `drain` starts to drain and returns.
  Control(const Parts& parts, absl::AnyInvocable<void()> drain);

  void set_addresses(Addresses addresses) { addresses_ = std::move(addresses); }
  void set_draining() { is_draining_ = true; }
  // Outlives this.
  void set_keeper(const ipc::KeeperClient* keeper) { keeper_ = keeper; }
  void set_snapshots(const SnapshotDirectory* snapshots) {
    snapshots_ = snapshots;
  }

  // Gauges that nobody moves by events; called now and then.
  void RefreshMetrics();

  v1::VersionReply Version() const override;
  v1::GetServerInfoReply ServerInfo() override;
  v1::StatusReply Status() override;
  v1::ListJobsReply ListJobs() override;
  absl::StatusOr<v1::GetJobReply> GetJob(const std::string& name) override;
  absl::Status AdoptJob(const std::string& name) override;
  void SaveSnapshot(const std::string& job, const std::string& name,
                    SaveDone done) override;
  void Drain() override { drain_(); }

 private:
  const Parts parts_;
  absl::AnyInvocable<void()> drain_;
  const absl::Time started_;
  Addresses addresses_;
  bool is_draining_ = false;
  const ipc::KeeperClient* keeper_ = nullptr;     // null: none is configured
  const SnapshotDirectory* snapshots_ = nullptr;  // likewise
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_CONTROL_H_
