#include "server/metrics/families.h"

namespace ballast::metrics {
namespace {

// 1 ms to 120 s: step stages.
const std::vector<double> kStepBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5,   1,      2.5,   5,    10,    30,   60,  120};

// 0.1 s to 30 minutes.
const std::vector<double> kSnapshotBuckets = {0.1, 0.25, 0.5, 1,   2.5, 5,   10,
                                              30,  60,   120, 300, 600, 1800};

const std::vector<FamilyInfo>& Table() {
  static const std::vector<FamilyInfo> table = {
      {.family = Family::kJobs,
       .name = "ballast_jobs",
       .help = "Jobs on this node by state.",
       .kind = Kind::kGauge,
       .labels = {{"state",
                   {"gathering", "loading", "running", "waiting", "failed",
                    "closing"}}}},
      {.family = Family::kClientSessions,
       .name = "ballast_client_sessions",
       .help = "Workers attached to this daemon.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kClientAttaches,
       .name = "ballast_client_attaches_total",
       .help = "Attach attempts by outcome; unavailable: to be tried again, "
               "as the daemon drains or the job is just ending.",
       .kind = Kind::kCounter,
       .labels = {{"outcome",
                   {"ok", "denied_identity", "denied_token", "denied_quota",
                    "unavailable", "invalid", "protocol", "internal"}}}},
      {.family = Family::kAdmissionRejections,
       .name = "ballast_admission_rejections_total",
       .help = "Attach attempts refused for lack of memory, for a limit on a "
               "count, or because the daemon drains.",
       .kind = Kind::kCounter,
       .labels = {{"reason", {"memory", "draining", "limit"}}}},
      {.family = Family::kRpcRequests,
       .name = "ballast_rpc_requests_total",
       .help = "Finished calls by method and status code.",
       .kind = Kind::kCounter,
       .labels = {{"method",
                   {"GetServerInfo", "Attach", "Begin", "Detach", "Close",
                    "GetStats", "Save", "SaveSnapshot", "Version", "Status",
                    "ListJobs", "GetJob", "AdoptJob", "Drain", "Rendezvous"}},
                  {"code",
                   {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT",
                    "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
                    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
                    "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
                    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
                    "UNAUTHENTICATED"}}}},
      {.family = Family::kSteps,
       .name = "ballast_steps_total",
       .help = "Finished optimizer steps by outcome.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"outcome", {"committed", "skipped", "aborted"}}}},
      {.family = Family::kStepDuration,
       .name = "ballast_step_duration_seconds",
       .help = "Time that a step spent in each stage on this node.",
       .kind = Kind::kHistogram,
       .is_per_job = true,
       .labels = {{"stage",
                   {"collect", "reduce", "vote", "update", "publish",
                    "total"}}},
       .buckets = kStepBuckets},
      {.family = Family::kStepLastCommitted,
       .name = "ballast_step_last_committed",
       .help = "Number of the last committed step.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kStepLastCommittedTimestamp,
       .name = "ballast_step_last_committed_timestamp_seconds",
       .help = "Unix time of the last committed step.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kStragglerWait,
       .name = "ballast_straggler_wait_seconds_total",
       .help = "Time between the first and the last worker of a step.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kExchangeWireBytes,
       .name = "ballast_exchange_wire_bytes_total",
       .help = "Bytes that steps moved between nodes, with headers and "
               "repetitions.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"transport", {"inproc", "ucx", "nccl"}},
                  {"direction", {"sent", "received"}}}},
      {.family = Family::kExchangeBroadcastBytes,
       .name = "ballast_exchange_broadcast_bytes_total",
       .help = "Bytes of initial weights moved between nodes before the first "
               "step, with headers; no step counts them.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"sent", "received"}}}},
      {.family = Family::kExchangeResyncBytes,
       .name = "ballast_exchange_resync_bytes_total",
       .help = "Bytes of published weights moved between nodes only to be "
               "compared, with headers; no step counts them.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"sent", "received"}}}},
      {.family = Family::kExchangeHealBytes,
       .name = "ballast_exchange_heal_bytes_total",
       .help = "Bytes of published weights moved between nodes to heal damaged "
               "copies, without headers; no step counts them.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"sent", "received"}}}},
      {.family = Family::kExchangePayloadBytes,
       .name = "ballast_exchange_payload_bytes_total",
       .help = "Bytes of gradients taken in from this node's workers and of "
               "weights made visible to them, in finished steps; not what "
               "moves between nodes (payload_bytes of a step is that).",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"pushed", "published"}}}},
      {.family = Family::kGatherBytes,
       .name = "ballast_gather_payload_bytes_total",
       .help = "Bytes of weights that this node pulled from their owners for "
               "its workers, and that other nodes pulled from it; only where "
               "weights are not resident.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"pulled", "served"}}}},
      {.family = Family::kGathers,
       .name = "ballast_gathers_total",
       .help = "Units of weights that became resident because a worker wanted "
               "them, and that were refused for lack of room.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"outcome", {"held", "refused"}}}},
      {.family = Family::kGatherWaits,
       .name = "ballast_gather_waits_total",
       .help = "Parts of weights that another node asked for before this one "
               "had the version.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kGatherResidentBytes,
       .name = "ballast_gather_resident_bytes",
       .help = "Memory of the weights that workers have gathered and not given "
               "back.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kExchangeDuration,
       .name = "ballast_exchange_duration_seconds",
       .help = "Time of one batch of a bucket (all of a small one) between "
               "nodes, from ready here to all of it moved, by phase.",
       .kind = Kind::kHistogram,
       .is_per_job = true,
       .labels = {{"phase", {"reduce", "publish"}}},
       .buckets = kStepBuckets},
      {.family = Family::kExchangeRelativeError,
       .name = "ballast_exchange_relative_error",
       .help = "Error of what all nodes sent in the last step (gradients, and "
               "the weights that they were computed from), sampled, relative "
               "to what was meant, as root mean squares.",
       .kind = Kind::kGauge,
       .is_per_job = true,
       .labels = {{"path", {"gradients", "weights"}}}},
      {.family = Family::kExchangeClippedShare,
       .name = "ballast_exchange_clipped_share",
       .help = "Share of the sampled elements that were cut off at the "
               "largest code (range clip16).",
       .kind = Kind::kGauge,
       .is_per_job = true,
       .labels = {{"path", {"gradients", "weights"}}}},
      {.family = Family::kExchangeCodecsWider,
       .name = "ballast_exchange_codecs_wider",
       .help = "Tensors that cross by a wider codec than the policy's, because "
               "their error was beyond max_relative_error.",
       .kind = Kind::kGauge,
       .is_per_job = true,
       .labels = {{"path", {"gradients", "weights"}}}},
      {.family = Family::kExchangeCodecChanges,
       .name = "ballast_exchange_codec_changes_total",
       .help = "Changes of a tensor's codec by an error budget.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"path", {"gradients", "weights"}},
                  {"to", {"wider", "narrower"}}}},
      {.family = Family::kExchangeResidualNorm,
       .name = "ballast_exchange_residual_norm",
       .help = "L2 norm of what encoding took from this node's gradients in "
               "the last step and adds to the next (error feedback); if it "
               "grows without end, the codec is too narrow.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kExchangeExactRatio,
       .name = "ballast_exchange_exact_ratio",
       .help = "How long the same steps would take between nodes without "
               "quantization, as a part of what they took, estimated over the "
               "last 16 steps; below 1, exact is faster on this link. 0: not "
               "known, or nothing is quantized.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kPeers,
       .name = "ballast_peers",
       .help = "Other nodes of the job by the state of the link to them.",
       .kind = Kind::kGauge,
       .is_per_job = true,
       .labels = {{"state", {"connecting", "ready", "failed"}}}},
      {.family = Family::kNonfiniteValues,
       .name = "ballast_nonfinite_values_total",
       .help = "Steps in which a NaN or an infinity was found, by place.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"place", {"gradient"}}}},
      {.family = Family::kWeightChunksBad,
       .name = "ballast_weight_chunks_bad_total",
       .help = "Chunks of published weights whose bits were not those that "
               "all nodes should have: changed in this node's memory, other "
               "than their owner's, damaged on the way, found by a periodic "
               "comparison, or by one after votes that differed; verify: "
               "changed in memory, found before the step's commit.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"kind",
                   {"copy", "reference", "result", "resync", "vote",
                    "verify"}}}},
      {.family = Family::kWeightChunksVerified,
       .name = "ballast_weight_chunks_verified_total",
       .help = "Chunks of published weights that were read before a vote, to "
               "compare them with what was written: in delta mode, with "
               "several nodes, each once a step.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kWeightChunksHealed,
       .name = "ballast_weight_chunks_healed_total",
       .help = "Chunks of published weights that got their bits back: the "
               "owner's from another node, a member's from the owner, after "
               "votes that differed, by a periodic comparison, or (not "
               "damaged) after links were lost on their way.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"kind", {"owner", "member", "vote", "resync", "relink"}}}},
      {.family = Family::kMembershipGeneration,
       .name = "ballast_membership_generation",
       .help = "Number of the membership view.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kSnapshots,
       .name = "ballast_snapshots_total",
       .help = "Snapshots by outcome; skipped: due while another one was "
               "being written; superseded: not taken, as another life of the "
               "job writes in its directory.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"outcome", {"saved", "failed", "skipped", "superseded"}}}},
      {.family = Family::kSnapshotDuration,
       .name = "ballast_snapshot_duration_seconds",
       .help = "Time of a whole snapshot, from the order to the rename.",
       .kind = Kind::kHistogram,
       .is_per_job = true,
       .buckets = kSnapshotBuckets},
      {.family = Family::kSnapshotLastStep,
       .name = "ballast_snapshot_last_step",
       .help = "Step of the last whole snapshot.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kSnapshotLastTimestamp,
       .name = "ballast_snapshot_last_success_timestamp_seconds",
       .help = "Unix time of the last whole snapshot.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kSnapshotBytes,
       .name = "ballast_snapshot_bytes_total",
       .help = "Bytes of whole snapshots, of all nodes.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kSnapshotCopiedBytes,
       .name = "ballast_snapshot_copied_bytes_total",
       .help = "Bytes of state that steps copied for a snapshot before they "
               "changed them: what snapshots cost training.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kSnapshotDirectoryReadable,
       .name = "ballast_snapshot_directory_readable",
       .help = "1 if snapshots.directory can be read, 0 if it cannot: nothing "
               "is saved or loaded; -1 if there is none.",
       .kind = Kind::kGauge},
      {.family = Family::kReplicas,
       .name = "ballast_replicas_total",
       .help = "Replicas by outcome; skipped: due while another one, or a "
               "snapshot, was being written.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"outcome", {"made", "failed", "skipped"}}}},
      {.family = Family::kReplicaLagSteps,
       .name = "ballast_replica_lag_steps",
       .help = "Steps that are published here and are in no replica that all "
               "nodes hold: what the loss of a node would undo.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kReplicaBytes,
       .name = "ballast_replica_bytes_total",
       .help = "Bytes of replicas between nodes; they are not among those of "
               "exchanges.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"sent", "received"}}}},
      {.family = Family::kReplicaHeldBytes,
       .name = "ballast_replica_held_bytes",
       .help = "Memory that holds replicas on this node, or is kept for the "
               "next one.",
       .kind = Kind::kGauge,
       .is_per_job = true},
      {.family = Family::kSharedBufferBytes,
       .name = "ballast_shared_buffer_bytes",
       .help = "Memory that is shared with workers.",
       .kind = Kind::kGauge,
       .is_per_job = true,
       .labels = {{"kind", {"memfd", "cuda_vmm"}}}},
      {.family = Family::kLeasesReaped,
       .name = "ballast_leases_reaped_total",
       .help = "Leases that ended without a detach, by cause.",
       .kind = Kind::kCounter,
       .labels = {{"cause",
                   {"peer_exit", "peer_closed", "protocol", "revoked"}}}},
      {.family = Family::kIdleConnections,
       .name = "ballast_idle_connections",
       .help = "Connections of workers that are attached to no job.",
       .kind = Kind::kGauge},
      {.family = Family::kIdleConnectionsClosed,
       .name = "ballast_idle_connections_closed_total",
       .help = "Connections closed because they were attached to no job for "
               "too long, or were too many.",
       .kind = Kind::kCounter,
       .labels = {{"cause", {"timeout", "limit"}}}},
      {.family = Family::kKeeperConnected,
       .name = "ballast_keeper_connected",
       .help = "1 if a keeper holds what a restart of the daemon needs, 0 if "
               "one is configured and does not, -1 if none is: a restart ends "
               "the jobs.",
       .kind = Kind::kGauge},
      {.family = Family::kKeeperRefusals,
       .name = "ballast_keeper_refusals_total",
       .help =
           "Descriptors of jobs that the keeper did not take when they were "
           "first offered: until it does, a restart ends the job.",
       .kind = Kind::kCounter},
      {.family = Family::kJobsTakenOver,
       .name = "ballast_jobs_taken_over_total",
       .help = "Jobs that the daemon before this one left, by what became of "
               "them.",
       .kind = Kind::kCounter,
       .labels = {{"outcome", {"ok", "failed"}}}},
      {.family = Family::kRelinks,
       .name = "ballast_job_relinks_total",
       .help = "Times that links between the job's nodes were lost and the "
               "nodes met again, or tried to.",
       .kind = Kind::kCounter,
       .is_per_job = true},
      {.family = Family::kPeersAbsent,
       .name = "ballast_job_peers_absent",
       .help = "Other nodes of the job without a link to this one while the "
               "job waits for them; 0 in between.",
       .kind = Kind::kGauge,
       .is_per_job = true},
  };
  return table;
}

}  // namespace

std::span<const FamilyInfo> Families() { return Table(); }

const FamilyInfo& Info(Family family) {
  return Table()[static_cast<size_t>(family)];
}

}  // namespace ballast::metrics
