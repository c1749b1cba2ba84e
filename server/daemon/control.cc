#include "server/daemon/control.h"

#include <unistd.h>

#include <utility>

#include "server/daemon/version.h"

namespace ballast::daemon {

using metrics::Family;

Control::Control(const Parts& parts, absl::AnyInvocable<void()> drain)
    : parts_(parts), drain_(std::move(drain)), started_(parts.clock->Now()) {}

v1::VersionReply Control::Version() const {
  v1::VersionReply reply;
  reply.set_version(kVersion);
  reply.set_compiler(kCompiler);
  reply.set_pid(getpid());
  return reply;
}

v1::GetServerInfoReply Control::ServerInfo() {
  v1::GetServerInfoReply reply;
  reply.set_version(kVersion);
  for (const char* name : {"sgd", "adam", "adamw", "lion", "adagrad"}) {
    reply.add_optimizers(name);
  }
  for (const char* name : {"exact", "zeropp", "delta4", "delta2"}) {
    reply.add_exchange_presets(name);
  }
  for (const char* name : {"float32", "bfloat16", "float16"}) {
    reply.add_dtypes(name);
  }
  reply.set_metrics_address(addresses_.http);
  return reply;
}

v1::StatusReply Control::Status() {
  v1::StatusReply reply;
  reply.set_state(is_draining_ ? "draining" : "serving");
  reply.set_version(kVersion);
  reply.set_pid(getpid());
  reply.set_uptime_seconds(
      absl::ToDoubleSeconds(parts_.clock->Now() - started_));
  reply.set_address(addresses_.workers);
  reply.set_metrics_address(addresses_.http);
  reply.set_peer_address(addresses_.peer);
  reply.set_keeper(keeper_ == nullptr        ? "off"
                   : keeper_->is_connected() ? "connected"
                                             : "lost");
  if (snapshots_ != nullptr) {
    reply.set_snapshots_error(std::string(snapshots_->status().message()));
  }
  for (v1::JobSummary& job : parts_.node->Jobs()) {
    *reply.add_jobs() = std::move(job);
  }
  reply.set_shared_memory_bytes(parts_.device->shared_bytes_in_use());
  return reply;
}

v1::ListJobsReply Control::ListJobs() {
  v1::ListJobsReply reply;
  for (v1::JobSummary& job : parts_.node->Jobs()) {
    *reply.add_jobs() = std::move(job);
  }
  return reply;
}

absl::StatusOr<v1::GetJobReply> Control::GetJob(const std::string& name) {
  return parts_.node->GetJob(name);
}

absl::Status Control::AdoptJob(const std::string& name) {
  return parts_.node->AdoptJob(name);
}

void Control::SaveSnapshot(const std::string& job, const std::string& name,
                           SaveDone done) {
  parts_.node->SaveSnapshot(
      job, name,
      [done = std::move(done)](absl::StatusOr<snapshot::Saved> saved) mutable {
        if (!saved.ok()) return std::move(done)(saved.status());
        v1::SaveSnapshotReply reply;
        reply.set_path(saved->path);
        reply.set_step(saved->step);
        reply.set_size_bytes(saved->size_bytes);
        std::move(done)(std::move(reply));
      });
}

void Control::RefreshMetrics() {
  const metrics::FamilyInfo& jobs_info = metrics::Info(Family::kJobs);
  const std::vector<session::LocalJob*> jobs = parts_.node->sessions().jobs();
  for (const std::string_view state : jobs_info.labels[0].values) {
    int count = 0;
    for (const session::LocalJob* job : jobs) {
      count += session::Name(job->state()) == state;
    }
    parts_.metrics->gauge(Family::kJobs, {state})->Set(count);
  }
  parts_.metrics->gauge(Family::kIdleConnections)
      ->Set(parts_.node->sessions().num_idle_connections());
  for (const auto& series : parts_.metrics->jobs()) {
    const session::LocalJob* const job =
        parts_.node->sessions().Find(series->job_id());
    if (job == nullptr) continue;
    series->gauge(Family::kClientSessions)->Set(job->num_attached());
    series->gauge(Family::kSharedBufferBytes, {"memfd"})
        ->Set(static_cast<double>(job->segment_bytes()));
    const JobRuntime* const runtime = parts_.node->Find(series->job_id());
    if (runtime == nullptr || runtime->peers() == nullptr) continue;
    for (const PeerState state :
         {PeerState::kConnecting, PeerState::kReady, PeerState::kFailed}) {
      series->gauge(Family::kPeers, {Name(state)})
          ->Set(runtime->peers()->Count(state));
    }
  }
}

}  // namespace ballast::daemon
