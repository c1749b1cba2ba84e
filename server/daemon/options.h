// From the checked configuration to the small option structs of the modules.
//
// Threading: pure functions.
#ifndef SERVER_DAEMON_OPTIONS_H_
#define SERVER_DAEMON_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/config.pb.h"
#include "server/daemon/job_routes.h"
#include "server/daemon/ucx_peer_plane.h"
#include "server/session/sessions.h"
#include "server/snapshot/job_replicas.h"
#include "server/snapshot/job_snapshots.h"

namespace ballast::daemon {

// All take a configuration that passed CheckConfig.
// 0 -> one per processor of compute.cpus, or that this process may use; not
// more than its cgroup lets run at once.
int ComputeThreads(const v1::Config& config);
// Where they stay, NUMA nodes in turn; empty: anywhere.
std::vector<int> ComputeCpus(const v1::Config& config);
absl::Duration Hold(const v1::Config& config);
absl::Duration JoinTimeout(const v1::Config& config);
uint64_t MaxTotalBytes(const v1::Config& config);  // 0 -> 4/5 of the memory
session::Options SessionOptions(const v1::Config& config);
absl::Duration PeerTimeout(const v1::Config& config);
absl::Duration RelinkTimeout(const v1::Config& config);
snapshot::Schedule SnapshotSchedule(const v1::Config& config);
snapshot::ReplicaSchedule ReplicaSchedule(const v1::Config& config);
// Where data of other nodes comes in; empty: the address of the one device.
std::string TransportAddress(const v1::Config& config);
Algorithms ExchangeAlgorithms(const v1::Config& config);
UcxPeerPlane::Options PeerPlaneOptions(const v1::Config& config);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_OPTIONS_H_
