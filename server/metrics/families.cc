#include "server/metrics/families.h"

namespace ballast::metrics {
namespace {

// 1 ms to 120 s: step stages.
const std::vector<double> kStepBuckets = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5,   1,      2.5,   5,    10,    30,   60,  120};

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
       .help = "Attach attempts by outcome.",
       .kind = Kind::kCounter,
       .labels = {{"outcome",
                   {"ok", "denied_identity", "denied_token", "denied_quota",
                    "invalid", "protocol", "internal"}}}},
      {.family = Family::kAdmissionRejections,
       .name = "ballast_admission_rejections_total",
       .help = "Jobs and workers refused for lack of room, by reason.",
       .kind = Kind::kCounter,
       .labels = {{"reason", {"quota", "memory", "draining", "limit"}}}},
      {.family = Family::kRpcRequests,
       .name = "ballast_rpc_requests_total",
       .help = "Finished calls by method and status code.",
       .kind = Kind::kCounter,
       .labels =
           {{"method",
             {"GetServerInfo", "Attach", "Begin", "Detach", "Close", "GetStats",
              "Version", "Status", "ListJobs", "GetJob", "Drain"}},
            {"code",
             {"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT",
              "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
              "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
              "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL",
              "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}}}},
      {.family = Family::kSteps,
       .name = "ballast_steps_total",
       .help = "Finished optimizer steps by outcome.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"outcome",
                   {"committed", "skipped", "aborted", "timed_out"}}}},
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
       .help = "Bytes moved between nodes, with headers and repetitions.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"transport", {"inproc", "ucx", "nccl"}},
                  {"direction", {"sent", "received"}}}},
      {.family = Family::kExchangePayloadBytes,
       .name = "ballast_exchange_payload_bytes_total",
       .help = "Bytes of gradients taken in from this node's workers and of "
               "weights made visible to them, in finished steps; not what "
               "moves between nodes (payload_bytes of a step is that).",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"direction", {"pushed", "published"}}}},
      {.family = Family::kTransportFallbacks,
       .name = "ballast_transport_fallbacks_total",
       .help = "Exchanges that used another transport than asked for.",
       .kind = Kind::kCounter,
       .labels = {{"from", {"ucx", "nccl"}},
                  {"to", {"inproc", "ucx"}},
                  {"reason", {"unavailable", "unsupported", "failed"}}}},
      {.family = Family::kNonfiniteValues,
       .name = "ballast_nonfinite_values_total",
       .help = "Steps in which a NaN or an infinity was found, by place.",
       .kind = Kind::kCounter,
       .is_per_job = true,
       .labels = {{"place", {"gradient", "weight"}}}},
      {.family = Family::kMembershipGeneration,
       .name = "ballast_membership_generation",
       .help = "Number of the membership view.",
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
  };
  return table;
}

}  // namespace

std::span<const FamilyInfo> Families() { return Table(); }

const FamilyInfo& Info(Family family) {
  return Table()[static_cast<size_t>(family)];
}

}  // namespace ballast::metrics
