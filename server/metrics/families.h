// Every metric family of the daemon, in one table: name, help, kind, labels
// with their bounded values, buckets. Nothing else defines a metric.
//
// Rules: names are ballast_<what>_<unit>, base units, _total on counters only.
// A label is either bounded (all its values are listed here and are exported
// as 0 from the start) or `job_id` (its series live as long as the job). No
// label names a peer, a bucket or a pid.
#ifndef SERVER_METRICS_FAMILIES_H_
#define SERVER_METRICS_FAMILIES_H_

#include <span>
#include <string_view>
#include <vector>

namespace ballast::metrics {

enum class Kind { kCounter, kGauge, kHistogram };

enum class Family {
  kJobs,
  kClientSessions,
  kClientAttaches,
  kAdmissionRejections,
  kRpcRequests,
  kSteps,
  kStepDuration,
  kStepLastCommitted,
  kStepLastCommittedTimestamp,
  kStragglerWait,
  kExchangeWireBytes,
  kExchangeBroadcastBytes,
  kExchangeResyncBytes,
  kExchangeHealBytes,
  kExchangePayloadBytes,
  kGatherBytes,
  kGathers,
  kGatherWaits,
  kGatherResidentBytes,
  kExchangeDuration,
  kExchangeRelativeError,
  kExchangeClippedShare,
  kExchangeCodecsWider,
  kExchangeCodecChanges,
  kExchangeResidualNorm,
  kExchangeExactRatio,
  kPeers,
  kNonfiniteValues,
  kWeightChunksBad,
  kWeightChunksVerified,
  kWeightChunksHealed,
  kMembershipGeneration,
  kSnapshots,
  kSnapshotDuration,
  kSnapshotLastStep,
  kSnapshotLastTimestamp,
  kSnapshotBytes,
  kSnapshotCopiedBytes,
  kSnapshotDirectoryReadable,
  kReplicas,
  kReplicaLagSteps,
  kReplicaBytes,
  kReplicaHeldBytes,
  kSharedBufferBytes,
  kLeasesReaped,
  kIdleConnections,
  kIdleConnectionsClosed,
  kKeeperConnected,
  kKeeperRefusals,
  kJobsTakenOver,
  kRelinks,
  kPeersAbsent,
  kNumFamilies,
};

struct Label {
  std::string_view name;
  std::vector<std::string_view> values;  // empty for job_id
};

struct FamilyInfo {
  Family family;
  std::string_view name;
  std::string_view help;
  Kind kind;
  bool is_per_job = false;           // has the label job_id, first
  std::vector<Label> labels = {};    // the bounded ones, in order
  std::vector<double> buckets = {};  // histograms: upper bounds, ascending
};

// In the order of Family, one entry each.
std::span<const FamilyInfo> Families();
const FamilyInfo& Info(Family family);

}  // namespace ballast::metrics

#endif  // SERVER_METRICS_FAMILIES_H_
