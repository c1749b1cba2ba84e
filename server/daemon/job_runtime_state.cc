// JobRuntime's side that keeps the job's state in files and replicas, and reads
// it from there.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/names.h"
#include "server/daemon/job_budget.h"
#include "server/daemon/job_identity.h"
#include "server/daemon/job_manifest.h"
#include "server/daemon/job_runtime.h"
#include "server/snapshot/weight_places.h"

namespace ballast::daemon {

// ---- What it goes on from. ----

void JobRuntime::MakeSnapshots() {
  const bool has_replicas = parts_.replicas.every_steps > 0;
  if (parts_.snapshot_files == nullptr && !has_replicas) return;
  snapshot::JobSnapshots::Parts parts;
  parts.job = MakeManifest(*parts_.job, *plan_, state_->num_moments(),
                           residuals_ != nullptr);
  parts.layout = &parts_.job->layout();
  parts.node = parts_.job->node();
  parts.has_published = plan_->quantizes_weights();
  parts.state = state_.get();
  parts.residuals = residuals_.get();
  parts.weights = snapshot::WeightPlaces(parts_.job->weights());
  if (weights_ != nullptr) weights_->AddTo(&parts);
  parts.device = parts_.device;
  parts.files = parts_.snapshot_files;
  parts.life = parts_.life;
  parts.io = parts_.io;
  parts.clock = parts_.clock;
  parts.executor = parts_.executor;
  parts.random = parts_.random;
  parts.schedule = parts_.snapshots;
  if (has_replicas) {
    held_ = std::make_shared<snapshot::HeldFiles>(
        snapshot::HeldBytes(*parts.layout, parts.node,
                            {state_->num_moments(), parts.has_published,
                             residuals_ != nullptr, parts.gathers_weights}),
        parts.node, num_nodes_);
    parts.held = held_.get();
    parts.replicas = parts_.replicas;
    parts.is_link_busy = [this] {
      return peers_ != nullptr && peers_->is_exchanging();
    };
  }
  parts.port = this;
  snapshots_ = std::make_unique<snapshot::JobSnapshots>(parts);
}

// Where jobs keep replicas: what is loaded is agreed on, once there are links.
void JobRuntime::MakeResume() {
  const session::JobSpec& spec = parts_.job->spec();
  if (held_ == nullptr || !spec.asks_nodes || parts_.is_taken_over) return;
  JobResume::Parts parts;
  parts.options.job = spec.name;
  parts.options.num_nodes = num_nodes_;
  if (spec.stored.has_value()) parts.options.stored_step = spec.stored->step;
  parts.options.must_resume = spec.must_resume;
  parts.node = parts_.job->node();
  parts.stored = spec.stored;
  parts.held = parts_.remnant;
  parts.identity = IdentityOf(spec, parts_.job->uid());
  parts.target = MakeLoadTarget();
  parts.files = parts_.snapshot_files;
  parts.io = parts_.io;
  parts.clock = parts_.clock;
  parts.executor = parts_.executor;
  parts.send = [this](NodeRank to, const v1::ResumeFrame& frame) {
    v1::PeerFrame out;
    out.set_job(parts_.job->spec().name);
    out.set_from(parts_.job->node().value());
    out.set_incarnation(incarnation_.value());
    *out.mutable_resume() = frame;
    Send(to, out);
  };
  parts.warn = parts_.warn;
  parts.on_idle = [this] { FinishStopIfQuiet(); };
  resume_ = std::make_unique<JobResume>(std::move(parts));
}

void JobRuntime::AgreeOnState() {
  resume_->Start(peers_ != nullptr ? peers_->pulls() : nullptr,
                 parts_.job->has_initial_values(),
                 [this](absl::StatusOr<JobResume::Result> result) {
                   if (is_stopping_) return;
                   if (!result.ok()) return Fail(result.status());
                   if (snapshots_ != nullptr && peers_ != nullptr) {
                     snapshots_->SetPulls(peers_->pulls());
                   }
                   if (result->loaded.has_value()) {
                     return OnLoaded(*std::move(result->loaded),
                                     result->source);
                   }
                   Measure();
                 });
}

absl::Status JobRuntime::Adopt() {
  if (resume_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", base::Quoted(parts_.job->spec().name),
                     " does not wait for a word on nodes that are missing"));
  }
  return resume_->Adopt();
}

snapshot::LoadTarget JobRuntime::MakeLoadTarget() {
  snapshot::LoadTarget target;
  target.layout = &parts_.job->layout();
  target.node = parts_.job->node();
  target.kernels = parts_.kernels;
  target.state = state_.get();
  target.weights = weights_ != nullptr
                       ? weights_->places()
                       : snapshot::WeightPlaces(parts_.job->weights());
  target.wants_published = plan_->quantizes_weights();
  target.residuals = residuals_.get();
  return target;
}

void JobRuntime::Load() {
  loading_ = std::make_unique<JobLoading>(parts_.snapshot_files, parts_.io);
  loading_->Start(
      *parts_.job->spec().stored, MakeLoadTarget(),
      [this](absl::StatusOr<snapshot::LoadedState> loaded) {
        loading_.reset();
        if (is_stopping_) return FinishStopIfQuiet();
        OnLoaded(std::move(loaded),
                 absl::StrCat("snapshot ", parts_.job->spec().stored->path));
      });
}

void JobRuntime::OnLoaded(absl::StatusOr<snapshot::LoadedState> loaded,
                          const std::string& source) {
  last_progress_ = parts_.clock->Now();
  if (!loaded.ok()) return Fail(loaded.status());
  if (parts_.log != nullptr) {
    parts_.log(
        DescribeLoaded(*parts_.job, source, *loaded, residuals_ != nullptr));
  }
  RestoreBudget(loaded->budget, plan_.get(), membership_.get());
  optimizer::Scalars scalars;
  // Generations grow within a life of the job, and this is another one: what
  // stays under way from earlier ones is refused by its incarnation.
  scalars.generation = Generation(1);
  scalars.step = Step(loaded->step);
  scalars.optimizer_step = loaded->optimizer_step;
  scalars.groups = loaded->groups;
  scalars.cursors = loaded->cursors;
  const absl::Status kept = state_->Commit(std::move(scalars));
  if (!kept.ok()) return Fail(kept);
  parts_.job->Restore(loaded->optimizer_step, std::move(loaded->groups),
                      std::move(loaded->cursors),
                      std::move(loaded->rank0_cursor), source);
  is_loaded_ = true;
  if (resume_ != nullptr) return Measure();
  JoinOthers();
}

// ---- What it keeps. ----

std::vector<snapshot::BudgetInfo> JobRuntime::Budget() const {
  return daemon::Budget(*plan_, *membership_);
}

void JobRuntime::SendSnapshot(NodeRank to, const v1::SnapshotFrame& frame) {
  v1::PeerFrame out;
  out.set_job(parts_.job->spec().name);
  out.set_from(parts_.job->node().value());
  out.set_incarnation(incarnation_.value());
  *out.mutable_snapshot() = frame;
  Send(to, out);
}

absl::StatusOr<Step> JobRuntime::HoldSteps() {
  absl::StatusOr<Step> held = membership_->HoldSteps();
  holds_steps_ = held.ok();
  return held;
}

void JobRuntime::ReleaseSteps() {
  holds_steps_ = false;
  membership_->ReleaseSteps();
}

void JobRuntime::OnSnapshot(const absl::StatusOr<snapshot::Saved>& saved) {
  const snapshot::SnapshotStatus status = snapshots_->status();
  snapshot_metrics_.OnSnapshot(status, saved.ok());
  if (parts_.log == nullptr) return;
  parts_.log(
      SnapshotLine(parts_.job->spec().name, saved, status.last_duration));
}

// One that is whole is no news.
void JobRuntime::OnReplica(const absl::StatusOr<snapshot::Saved>& saved) {
  replica_metrics_.OnReplica(snapshots_->status().replicas, saved.status());
  if (saved.ok()) parts_.host->OnReplicaMade(*parts_.job);
  if (saved.ok() || absl::IsCancelled(saved.status()) ||
      parts_.log == nullptr) {
    return;
  }
  parts_.log(absl::StrCat("replica failed job=", parts_.job->spec().name,
                          " reason=\"", std::string(saved.status().message()),
                          "\""));
}

std::string JobRuntime::AttachedWorkers() const {
  std::vector<std::string> attached;
  const session::LocalJob& job = *parts_.job;
  for (int l = 0; l < job.local_world_size(); ++l) {
    const session::Slot& slot = job.slot(LocalRank(l));
    if (!slot.is_occupied()) continue;
    attached.push_back(absl::StrCat("rank ", job.RankOf(LocalRank(l)).value(),
                                    " (pid ", slot.identity().pid, ")"));
  }
  return absl::StrJoin(attached, ", ");
}

std::shared_ptr<snapshot::HeldFiles> JobRuntime::TakeHeld() {
  if (!has_started_) return nullptr;
  return std::move(held_);
}

}  // namespace ballast::daemon
