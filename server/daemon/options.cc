#include "server/daemon/options.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "server/base/cpus.h"
#include "server/daemon/config/local_address.h"
#include "server/daemon/config/units.h"
#include "server/transport/routed/routes.h"

namespace ballast::daemon {

int ComputeThreads(const v1::Config& config) {
  if (config.compute().threads() > 0) return config.compute().threads();
  const std::vector<int> cpus = ComputeCpus(config);
  const auto usable =
      static_cast<int>(cpus.empty() ? base::UsableCpus().size() : cpus.size());
  const int quota = base::CpuQuota();
  return quota > 0 ? std::min(usable, quota) : usable;
}

std::vector<int> ComputeCpus(const v1::Config& config) {
  const auto cpus = base::ParseCpuList(config.compute().cpus());
  if (!cpus.ok()) return {};  // empty
  return base::SpreadOverNodes(*cpus, base::NumaNodesOf(*cpus));
}

absl::Duration Hold(const v1::Config& config) {
  return ParseDuration(config.jobs().hold()).value_or(absl::Minutes(10));
}

absl::Duration JoinTimeout(const v1::Config& config) {
  return ParseDuration(config.jobs().join_timeout())
      .value_or(absl::Minutes(10));
}

uint64_t MaxTotalBytes(const v1::Config& config) {
  if (config.limits().max_total_bytes() > 0) {
    return config.limits().max_total_bytes();
  }
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return memory / 5 * 4;
}

session::Options SessionOptions(const v1::Config& config) {
  session::Options options;
  options.limits.max_jobs = config.limits().max_jobs();
  options.limits.max_workers_per_job = config.limits().max_workers_per_job();
  options.limits.max_tensors = config.limits().max_tensors();
  options.limits.max_job_bytes = config.limits().max_job_bytes();
  options.limits.max_total_bytes = MaxTotalBytes(config);
  options.idle.max_total = config.limits().max_idle_connections();
  options.idle.max_per_uid = config.limits().max_idle_connections_per_uid();
  options.idle.timeout =
      ParseDuration(config.limits().idle_connection_timeout())
          .value_or(absl::Seconds(30));
  options.default_hold = Hold(config);
  options.join_timeout = JoinTimeout(config);
  options.default_bucket_bytes = config.compute().bucket_bytes();
  options.chunk_bytes = config.compute().chunk_bytes();
  options.compute_threads = ComputeThreads(config);
  return options;
}

absl::Duration PeerTimeout(const v1::Config& config) {
  return ParseDuration(config.transport().peer_timeout())
      .value_or(absl::Seconds(30));
}

absl::Duration RelinkTimeout(const v1::Config& config) {
  return ParseDuration(config.transport().relink_timeout())
      .value_or(absl::Minutes(5));
}

snapshot::Schedule SnapshotSchedule(const v1::Config& config) {
  const v1::SnapshotsConfig& snapshots = config.snapshots();
  snapshot::Schedule schedule;
  schedule.every_steps = snapshots.every_steps();
  schedule.every =
      ParseDuration(snapshots.every()).value_or(absl::InfiniteDuration());
  schedule.keep = snapshots.keep();
  schedule.max_bytes_per_second = snapshots.max_bytes_per_second();
  return schedule;
}

snapshot::ReplicaSchedule ReplicaSchedule(const v1::Config& config) {
  return {.every_steps = config.replicas().every_steps(),
          .max_bytes_per_second = config.replicas().max_bytes_per_second()};
}

std::string TransportAddress(const v1::Config& config) {
  const v1::TransportConfig& transport = config.transport();
  if (!transport.listen_address().empty()) return transport.listen_address();
  const std::string& devices = transport.ucx_devices();
  const bool is_one_device =
      !devices.empty() && devices.find(',') == std::string::npos;
  if (is_one_device) return "";  // UCX takes its address
  return NumericHost(config.listen().peer()).value_or(LocalAddress());
}

Algorithms ExchangeAlgorithms(const v1::Config& config) {
  return {.gather = transport::AlgorithmOf(config.transport().gather()),
          .reduce = transport::AlgorithmOf(config.transport().reduce())};
}

UcxPeerPlane::Options PeerPlaneOptions(const v1::Config& config) {
  const v1::TransportConfig& transport = config.transport();
  UcxPeerPlane::Options options;
  options.node_name = config.node().name();
  options.coordinator = config.node().coordinator();
  options.ucx.wire.transports = transport.ucx_tls();
  options.ucx.wire.devices = transport.ucx_devices();
  options.ucx.wire.listen_address = TransportAddress(config);
  options.ucx.protocol.exchanges.chunk_bytes =
      static_cast<uint32_t>(transport.chunk_bytes());
  options.ucx.protocol.connect_timeout =
      ParseDuration(transport.connect_timeout()).value_or(absl::Seconds(20));
  options.ucx.protocol.peer_timeout = PeerTimeout(config);
  options.ucx.protocol.ping_interval =
      std::min(absl::Seconds(1), PeerTimeout(config) / 4);
  return options;
}

}  // namespace ballast::daemon
