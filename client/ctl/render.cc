#include "client/ctl/render.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"

namespace ballast::ctl {
namespace {

std::string Line(const std::string& name, const std::string& value) {
  return absl::StrFormat("%-16s %s\n", name, value);
}

// "3/4"; of a job over several nodes those of this node: "3/4 of 16".
std::string Workers(const v1::JobSummary& job) {
  const int num_nodes = std::max(job.num_nodes(), 1);
  std::string text =
      absl::StrCat(job.num_attached(), "/", job.world_size() / num_nodes);
  if (num_nodes > 1) absl::StrAppend(&text, " of ", job.world_size());
  return text;
}

// "4 nodes, 8 workers, state shared by groups of 2 nodes".
std::string Topology(const v1::JobSummary& job) {
  std::string text =
      absl::StrCat(job.num_nodes(), " nodes, ", job.world_size(), " workers");
  if (job.partition_nodes() > 0) {
    absl::StrAppend(&text, ", state shared by groups of ",
                    job.partition_nodes(), " nodes");
  }
  return text;
}

std::string JobTable(
    const google::protobuf::RepeatedPtrField<v1::JobSummary>& jobs) {
  Table table({"JOB", "TENANT", "STATE", "WORKERS", "STEP", "WEIGHTS", "MEMORY",
               "WAITS FOR"});
  for (const v1::JobSummary& job : jobs) {
    table.AddRow({job.name(), job.tenant(), job.state(), Workers(job),
                  absl::StrCat(job.open_step()),
                  absl::StrCat(job.weight_version()), FormatBytes(job.bytes()),
                  job.waiting_for().empty() ? "-" : job.waiting_for()});
  }
  std::string text = table.ToString();
  for (const v1::JobSummary& job : jobs) {
    if (!job.notice().empty()) {
      absl::StrAppend(&text, "\njob ", job.name(), ": ", job.notice(), "\n");
    }
    if (!job.not_kept().empty()) {
      absl::StrAppend(&text, "\njob ", job.name(),
                      " is not kept: ", job.not_kept(), "\n");
    }
  }
  return text;
}

// "2 tensors: h.0.mlp int8 for int4, …"
std::string WiderCodecs(const v1::PathQuality& path) {
  constexpr int kMaxNamed = 3;
  std::string line = absl::StrCat(path.num_wider(), " tensors");
  for (int i = 0; i < std::min(path.wider_size(), kMaxNamed); ++i) {
    const v1::WiderCodec& wider = path.wider(i);
    absl::StrAppend(&line, i == 0 ? ": " : ", ", wider.tensor(), " ",
                    wider.codec(), " for ", wider.policy_codec());
  }
  if (path.num_wider() > kMaxNamed) absl::StrAppend(&line, ", …");
  return line;
}

// "0.021, 0.1 % clipped, residual 0.3; worst h.0.mlp 0.043 (int4), …", a line
// per path.
std::string QualityLines(const v1::GetJobReply& job) {
  constexpr int kMaxNamed = 3;
  std::string text;
  for (const v1::PathQuality& path : job.quality()) {
    std::string line = path.sampled() == 0
                           ? "not measured yet"
                           : absl::StrFormat("%.3g", path.relative_error());
    if (path.clipped_share() > 0) {
      absl::StrAppendFormat(&line, ", %.2g %% clipped",
                            100 * path.clipped_share());
    }
    if (path.residual_norm() > 0) {
      absl::StrAppendFormat(&line, ", residual %.3g", path.residual_norm());
    }
    const int num_named = std::min(path.worst_size(), kMaxNamed);
    for (int i = 0; i < num_named; ++i) {
      const v1::TensorQuality& worst = path.worst(i);
      absl::StrAppendFormat(&line, "%s %s %.3g (%s)", i == 0 ? "; worst" : ",",
                            worst.tensor(), worst.relative_error(),
                            worst.codec());
    }
    absl::StrAppend(&text, Line(absl::StrCat("error of ", path.path()), line));
    if (path.num_wider() > 0) {
      absl::StrAppend(
          &text, Line(absl::StrCat("wider ", path.path()), WiderCodecs(path)));
    }
  }
  if (job.max_relative_error() > 0) {
    absl::StrAppend(
        &text, Line("error budget", absl::StrFormat("%g per tensor",
                                                    job.max_relative_error())));
  }
  if (job.exact_ratio() > 0) {
    absl::StrAppend(
        &text, Line("exact takes",
                    absl::StrFormat(
                        "%.2g of the time between nodes%s", job.exact_ratio(),
                        job.exact_ratio() < 1
                            ? ": this link is faster than the codecs, use "
                              "exchange=exact"
                            : "")));
  }
  return text;
}

}  // namespace

std::string FormatBytes(uint64_t size_bytes) {
  static constexpr const char* kUnits[] = {"B",   "KiB", "MiB", "GiB",
                                           "TiB", "PiB", "EiB"};
  double value = static_cast<double>(size_bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat(unit == 0 ? "%.0f %s" : "%.1f %s", value,
                         kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 60) return absl::StrFormat("%.3g s", seconds);
  const int64_t minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 60) {
    return absl::StrFormat("%dm %ds", minutes,
                           static_cast<int64_t>(seconds) % 60);
  }
  return absl::StrFormat("%dh %dm", minutes / 60, minutes % 60);
}

std::string Render(const v1::StatusReply& status) {
  std::string text =
      Line("state", status.state()) + Line("version", status.version()) +
      Line("pid", absl::StrCat(status.pid())) +
      Line("up for", FormatSeconds(status.uptime_seconds())) +
      Line("workers at", status.address()) +
      Line("metrics at", status.metrics_address().empty()
                             ? "off"
                             : absl::StrCat("http://", status.metrics_address(),
                                            "/metrics")) +
      Line("peers at",
           status.peer_address().empty() ? "off" : status.peer_address()) +
      Line("keeper", status.keeper()) +
      (status.snapshots_error().empty()
           ? ""
           : Line("snapshots", "cannot be read: " + status.snapshots_error())) +
      Line("shared memory", FormatBytes(status.shared_memory_bytes())) +
      Line("jobs", absl::StrCat(status.jobs_size()));
  if (status.jobs_size() > 0) {
    absl::StrAppend(&text, "\n", JobTable(status.jobs()));
  }
  return text;
}

std::string Render(const v1::ListJobsReply& jobs) {
  return JobTable(jobs.jobs());
}

std::string RenderSnapshots(const v1::SnapshotStatus& snapshots) {
  if (!snapshots.enabled()) return Line("snapshots", "off");
  std::string text =
      Line("snapshots",
           absl::StrCat(snapshots.saved(), " saved, ", snapshots.failed(),
                        " failed, ", snapshots.skipped(), " skipped, ",
                        snapshots.superseded(), " superseded"));
  if (snapshots.saving()) {
    text += Line(
        "saving",
        absl::StrCat(FormatBytes(snapshots.bytes_written()), " of ",
                     FormatBytes(snapshots.bytes_total()), " on this node"));
  }
  if (!snapshots.last_path().empty()) {
    text += Line("last snapshot",
                 absl::StrCat(snapshots.last_path(), ", ",
                              FormatBytes(snapshots.last_size_bytes()), " in ",
                              FormatSeconds(snapshots.last_seconds())));
  }
  if (!snapshots.last_error().empty()) {
    text += Line("snapshot error", snapshots.last_error());
  }
  return text;
}

std::string RenderReplicas(const v1::ReplicaStatus& replicas) {
  if (!replicas.enabled()) return Line("replicas", "off");
  std::string text =
      Line("replicas",
           absl::StrCat(replicas.made(), " made, ", replicas.failed(),
                        " failed, ", replicas.skipped(), " skipped; ",
                        FormatBytes(replicas.held_bytes()), " held here, ",
                        FormatBytes(replicas.bytes_sent()), " sent")) +
      Line("last replica", absl::StrCat("step ", replicas.last_step(), ", ",
                                        replicas.lag_steps(), " behind"));
  if (!replicas.last_error().empty()) {
    text += Line("replica error", replicas.last_error());
  }
  return text;
}

std::string Render(const v1::GetJobReply& job) {
  const v1::JobSummary& summary = job.summary();
  std::string text =
      Line("job", summary.name()) + Line("tenant", summary.tenant()) +
      Line("state", summary.state()) + Line("topology", Topology(summary)) +
      Line("optimizer", job.optimizer()) + Line("exchange", job.exchange()) +
      Line("model",
           absl::StrCat(job.num_tensors(), " tensors, ", job.num_elements(),
                        " elements, ", job.num_buckets(), " buckets")) +
      Line("layout", job.layout_digest()) +
      Line("memory", absl::StrCat(FormatBytes(summary.bytes()), ", ",
                                  FormatBytes(summary.admitted_bytes()),
                                  " counted by limits")) +
      Line("generation", absl::StrCat(summary.generation())) +
      Line("open step", absl::StrCat(summary.open_step())) +
      Line("weight version", absl::StrCat(summary.weight_version())) +
      Line("steps", absl::StrCat(job.steps_committed(), " committed, ",
                                 job.steps_skipped(), " skipped, ",
                                 job.steps_aborted(), " aborted")) +
      Line("last step", absl::StrFormat("%s, gradient norm %.4g",
                                        FormatSeconds(job.last_step_seconds()),
                                        job.last_grad_norm())) +
      Line("last progress",
           FormatSeconds(job.steps_since_progress_ms() / 1e3) + " ago") +
      Line("exchanges", job.routes().empty() ? "none" : job.routes()) +
      Line("fallbacks", absl::StrCat(job.fallbacks())) +
      Line("weight chunks",
           absl::StrCat(job.weight_chunks_bad(), " damaged, ",
                        job.weight_chunks_healed(), " healed")) +
      QualityLines(job) + RenderSnapshots(job.snapshots()) +
      RenderReplicas(job.replicas()) +
      Line("waits for",
           summary.waiting_for().empty() ? "nobody" : summary.waiting_for()) +
      Line("last failure",
           job.last_failure().empty() ? "none" : job.last_failure());
  if (job.has_gather()) {
    const v1::GatherStatus& gather = job.gather();
    const std::string limit = gather.limit_bytes() == 0
                                  ? "no bound"
                                  : FormatBytes(gather.limit_bytes());
    absl::StrAppend(
        &text,
        Line("gathered",
             absl::StrCat(gather.units_held(), " of ", gather.units(),
                          " units, ", FormatBytes(gather.resident_bytes()),
                          " of ", limit)),
        Line("gathers", absl::StrCat(gather.gathers(), " done, ",
                                     gather.refusals(), " refused")),
        Line("parts",
             absl::StrCat(FormatBytes(gather.payload_pulled()), " pulled, ",
                          FormatBytes(gather.payload_served()), " served")));
  }
  Table table({"RANK", "LOCAL", "STATE", "PID", "PROCESS", "BUCKETS PUSHED"});
  for (const v1::WorkerStatus& worker : job.workers()) {
    table.AddRow({absl::StrCat(worker.rank()),
                  absl::StrCat(worker.local_rank()), worker.state(),
                  worker.pid() == 0 ? "-" : absl::StrCat(worker.pid()),
                  worker.process().empty() ? "-" : worker.process(),
                  absl::StrCat(worker.buckets_pushed())});
  }
  absl::StrAppend(&text, "\n", table.ToString());
  if (job.nodes_size() == 0) return text;
  Table nodes({"NODE", "LINK", "WAITS FOR"});
  for (const v1::PeerNode& node : job.nodes()) {
    nodes.AddRow({absl::StrCat(node.node()), node.state(),
                  node.waiting_for().empty() ? "-" : node.waiting_for()});
  }
  return absl::StrCat(text, "\n", nodes.ToString());
}

std::string Render(const v1::VersionReply& version) {
  return Line("version", version.version()) +
         Line("compiler", version.compiler()) +
         Line("pid", absl::StrCat(version.pid()));
}

}  // namespace ballast::ctl
