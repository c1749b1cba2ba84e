#include "server/daemon/job_runtime.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/daemon/job_budget.h"
#include "server/daemon/job_identity.h"
#include "server/daemon/job_progress.h"
#include "server/daemon/open_chunks.h"
#include "server/daemon/report/step_report.h"
#include "server/daemon/two_slots.h"
#include "server/layout/policy.h"

namespace ballast::daemon {

absl::StatusOr<std::unique_ptr<JobRuntime>> JobRuntime::Create(
    JobRuntimeParts parts) {
  auto runtime = std::unique_ptr<JobRuntime>(new JobRuntime(std::move(parts)));
  RETURN_IF_ERROR(runtime->Initialize());
  return runtime;
}

JobRuntime::JobRuntime(JobRuntimeParts parts)
    : parts_(std::move(parts)),
      num_nodes_(parts_.job->layout().topology().num_nodes),
      snapshot_metrics_(parts_.metrics.get()),
      replica_metrics_(parts_.metrics.get()),
      incarnation_(parts_.incarnation),
      record_(parts_.record),
      routes_(parts_.algorithms, num_nodes_, Checksum(parts_.job->spec().name),
              parts_.clock),
      processes_(std::make_unique<session::ProcessWatch>()),
      heals_(parts_.executor,
             absl::StrCat("heals of job ", parts_.job->spec().name),
             [this](const std::string& line) {
               if (parts_.warn) parts_.warn(line);
             }),
      relinking_(parts_.relink_timeout),
      last_progress_(parts_.clock->Now()),
      alive_(std::make_shared<int>(0)) {}

JobRuntime::~JobRuntime() {
  for (const base::TimerId timer : {fail_timer_, lost_timer_, relink_timer_}) {
    parts_.executor->Cancel(timer);
  }
  if (snapshots_ != nullptr) snapshots_->SetPulls(nullptr);
  if (resume_ != nullptr) resume_->Cancel();
}

absl::Status JobRuntime::Initialize() {
  const session::JobSpec& spec = parts_.job->spec();
  const layout::Layout& layout = parts_.job->layout();
  const NodeRank node = parts_.job->node();
  ASSIGN_OR_RETURN(const layout::ExchangePolicy policy,
                   layout::ParsePolicy(spec.exchange));
  plan_ = std::make_unique<layout::ExchangePlan>(policy, layout);
  if (plan_->codes_deltas()) {
    std::unique_ptr<device::SharedBuffer> memory;
    if (is_kept()) {
      ASSIGN_OR_RETURN(memory,
                       parts_.device->AllocateShared(
                           collective::PublishedChunks::SizeBytes(layout, node),
                           "published chunks"));
    }
    published_ = std::make_unique<collective::PublishedChunks>(
        &layout, node, std::move(memory));
  }
  if (plan_->feeds_back()) {
    ASSIGN_OR_RETURN(residuals_,
                     optimizer::Residuals::Create(parts_.device, layout, node));
  }
  ASSIGN_OR_RETURN(state_, optimizer::ShardState::Create(
                               parts_.device, layout, node, spec.optimizer,
                               AnyMomentum(spec.groups)));
  RETURN_IF_ERROR(MakeWeights());
  MakeSnapshots();
  MakeResume();
  optimizer::Parts optimizer_parts = {
      .layout = &layout,
      .node = node,
      .kernels = parts_.kernels,
      .pool = parts_.pool,
      .device = parts_.device,
      .state = state_.get(),
      .weights = parts_.job->weights(),
      .casts_weights = !plan_->quantizes_weights(),
      .observer = this,
      .guard = snapshots_ != nullptr ? snapshots_->guard() : nullptr};
  if (weights_ != nullptr) weights_->AddTo(&optimizer_parts);
  std::unique_ptr<optimizer::UndoLog> undo;
  if (parts_.is_taken_over) {
    ASSIGN_OR_RETURN(undo,
                     RestoreOpenChunks(layout, node, parts_.pool->num_threads(),
                                       parts_.left, state_.get()));
  }
  ASSIGN_OR_RETURN(optimizer_, optimizer::Optimizer::Create(optimizer_parts,
                                                            std::move(undo)));
  engine::Parts engine_parts;
  engine_parts.layout = &layout;
  engine_parts.node = node;
  engine_parts.clock = parts_.clock;
  engine_parts.state = state_.get();
  engine_parts.optimizer = optimizer_.get();
  engine_parts.workers = this;
  engine_parts.members = this;
  load_ = std::make_unique<WeightLoad>(WeightLoad::Parts{
      .job = parts_.job,
      .optimizer = optimizer_.get(),
      .published = published_.get(),
      .residuals = residuals_.get(),
      .guard = snapshots_ != nullptr ? snapshots_->guard() : nullptr,
      .collective = [this] { return collective_.get(); },
      .is_loaded =
          [this](Step step) {
            return record_ != nullptr && record_->loaded() == step;
          }});
  engine_parts.loads = load_.get();
  engine_parts.metrics = parts_.metrics.get();
  if (plan_->quantizes_gradients() || plan_->quantizes_weights()) {
    engine_parts.exact_bytes =
        layout::ExchangePlan(layout::ExchangePolicy(), layout)
            .PerStep(layout, node)
            .total();
  }
  if (num_nodes_ > 1) {
    engine_parts.transport_name = parts_.peers->transport_name();
  }
  engine_parts.rank_name = [job = parts_.job](LocalRank rank) {
    const int first = job->layout().topology().FirstRank(job->node()).value();
    return absl::StrCat("rank ", first + rank.value(), " (pid ",
                        job->slot(rank).identity().pid, ")");
  };
  engine_ = engine::JobEngine::Create(engine_parts);
  // What relinking goes by, where no keeper holds it.
  if (record_ == nullptr && num_nodes_ > 1 && relinking_.may_begin()) {
    ASSIGN_OR_RETURN(own_record_,
                     JobRecord::Create(parts_.device, v1::KeptJob()));
    record_ = own_record_.get();
  }
  if (parts_.is_taken_over && record_->notes().step() > 0) {
    engine_->RestoreErrors(Step(record_->notes().step()),
                           record_->notes().weight_errors());
  }
  membership::Parts& members = members_;
  members.job = spec.name;
  members.node = node;
  members.num_nodes = num_nodes_;
  members.optimizer = spec.optimizer;
  members.gradient_clipping = spec.gradient_clipping;
  SetMetered(*plan_, &members);
  members.join_timeout = parts_.join_timeout;
  members.peer_timeout = parts_.peer_timeout;
  members.clock = parts_.clock;
  members.executor = parts_.executor;
  members.link = num_nodes_ > 1 ? this : nullptr;
  members.outcomes = record_;
  members.observer = this;
  MakeMembership();
  return absl::OkStatus();
}

// Where they are not resident.
absl::Status JobRuntime::MakeWeights() {
  if (parts_.job->units() == nullptr) return absl::OkStatus();
  const collective::Parts owned_parts = CollectiveParts();
  ASSIGN_OR_RETURN(weights_, JobWeights::Create(
                                 {.job = parts_.job,
                                  .collective = &owned_parts,
                                  .metrics = parts_.metrics.get(),
                                  .on_failed = [this](const absl::Status& why) {
                                    OnGatherFailed(why);
                                  }}));
  if (parts_.is_taken_over) {
    weights_->TakeOver(state_->scalars().optimizer_step >
                       parts_.record->first_update());
  }
  return absl::OkStatus();
}

void JobRuntime::MakeMembership() {
  members_.incarnation = incarnation_;
  membership_ = membership::Membership::Create(members_);
}

absl::Status JobRuntime::TakeOver() {
  session::LocalJob* const job = parts_.job;
  const optimizer::Scalars& scalars = state_->scalars();
  ASSIGN_OR_RETURN(resumption_, Resume(parts_.record->last(), scalars.step,
                                       parts_.record->finished()));
  RestoreBudget(record_->budget(), plan_.get(), membership_.get());
  const bool is_open = !resumption_->commit.has_value();
  job->Restore(scalars.optimizer_step,
               scalars.groups.empty() ? job->spec().groups : scalars.groups,
               BALLAST_SABOTAGED("daemon.cursor_not_restored")
                   ? std::vector<std::string>()
                   : scalars.cursors,
               "");
  // Until all nodes have agreed on it, only this one's word.
  job->TakeOver(resumption_->generation,
                is_open ? resumption_->open_step
                        : Step(resumption_->open_step.value() - 1),
                is_open);
  if (parts_.log != nullptr) {
    parts_.log(absl::StrCat("job taken over job=", job->spec().name,
                            " step=", resumption_->open_step.value(),
                            " generation=", resumption_->generation.value(),
                            " workers=", job->num_attached(),
                            is_open ? "" : " finishing the step before"));
  }
  BALLAST_FAILPOINT("daemon.taken_over");
  has_joined_ = true;
  if (num_nodes_ > 1) {
    has_started_ = true;
    StartRelinking(
        absl::UnavailableError("the daemon of this node has started again"));
  }
  // Workers may close the job before the View: then there is nobody to tell.
  is_meeting_ = true;
  JoinOthers();
  return absl::OkStatus();
}

// ---- From the workers. ----

void JobRuntime::OnAllReady() {
  last_progress_ = parts_.clock->Now();
  if (has_joined_ || is_stopping_) return;
  has_joined_ = true;
  if (resume_ == nullptr && parts_.job->spec().stored.has_value()) {
    return Load();
  }
  if (resume_ != nullptr && num_nodes_ == 1) return AgreeOnState();
  JoinOthers();
}

void JobRuntime::OnPushed(LocalRank rank, BucketId bucket) {
  last_progress_ = parts_.clock->Now();
  engine_->OnPushed(rank, bucket);
}

void JobRuntime::OnStepInput(LocalRank rank,
                             std::span<const proto::GroupValues> groups,
                             std::string cursor) {
  last_progress_ = parts_.clock->Now();
  engine_->OnStepInput(rank, groups, std::move(cursor));
}

void JobRuntime::OnStepInputRefused(LocalRank rank, const absl::Status& why) {
  engine_->OnStepInputRefused(rank, why);
}

void JobRuntime::OnWanted(LocalRank rank, int unit, uint64_t request) {
  weights_->OnWanted(rank, unit, request);
}

// What the worker gave stays; Sessions hold the job for its replacement.
void JobRuntime::OnWorkerLost(LocalRank, const absl::Status&) {}

void JobRuntime::OnWorkerClosed(LocalRank rank) {
  if (record_ != nullptr) record_->SetClosed(rank);
}

// Sessions end the job next.
void JobRuntime::OnAllClosed() {}

// ---- From the engine to the workers. ----

void JobRuntime::Open(Generation generation, Step step) {
  parts_.job->Open(generation, step);
}

void JobRuntime::Consumed(BucketId bucket, Generation generation, Step step) {
  parts_.job->Consumed(bucket, generation, step);
}

void JobRuntime::Published(BucketId bucket, Generation generation, Step step) {
  if (weights_ != nullptr) {
    weights_->OnPublished(bucket, WeightVersion(step.value()));
  }
  parts_.job->Published(bucket, generation, step);
}

void JobRuntime::Committed(const engine::StepSummary& summary,
                           std::string_view rank0_cursor) {
  last_progress_ = parts_.clock->Now();
  parts_.job->Committed(ToReport(summary), rank0_cursor);
  const bool is_news = committed_ < summary.step;
  committed_ = summary.step;
  if (snapshots_ != nullptr && is_news) snapshots_->OnCommitted(summary.step);
}

void JobRuntime::Finished(const engine::StepSummary& summary) {
  last_progress_ = parts_.clock->Now();
  parts_.job->Finished(ToReport(summary));
  BALLAST_FAILPOINT("daemon.step_finished");
  const bool is_news = finished_ < summary.step;
  finished_ = summary.step;
  if (record_ != nullptr && is_news) KeepFinished(summary.step);
  if (snapshots_ != nullptr && is_news) {
    snapshots_->OnFinished(summary.step);
    const snapshot::SnapshotStatus status = snapshots_->status();
    snapshot_metrics_.Update(status);
    replica_metrics_.Update(status.replicas);
  }
}

void JobRuntime::KeepFinished(Step step) {
  const v1::PathErrors& errors = engine_->published_errors();
  if (is_kept() && errors.tensors_size() > 0) {
    v1::StepNotes notes;
    notes.set_step(step.value());
    *notes.mutable_weight_errors() = errors;
    if (!record_->SetNotes(notes) && !std::exchange(has_warned_, true) &&
        parts_.warn) {
      parts_.warn(absl::StrCat("a restart of this daemon forgets errors job=",
                               parts_.job->spec().name,
                               " reason=\"too many tensors are metered\""));
    }
  }
  record_->SetFinished(step);
}

void JobRuntime::Aborted(Step step, Generation next, const absl::Status& why) {
  parts_.job->Aborted(step, next, why);
}

// ---- From the arithmetic. ----

void JobRuntime::OnUpdated(BucketId bucket) {
  engine_->OnUpdated(bucket);
  FinishStopIfQuiet();
  MeetIfQuiet();
}

void JobRuntime::OnReduced(BucketId bucket,
                           const collective::Reduced& reduced) {
  engine_->OnReduced(bucket, reduced);
}

void JobRuntime::OnPublished(BucketId bucket) { engine_->OnPublished(bucket); }

void JobRuntime::OnCompared() { engine_->OnCompared(); }

void JobRuntime::OnFailed(absl::Status status) {
  if (absl::IsUnavailable(status) && CanRelink()) {
    OnLinkLost(status);
  } else if (has_started_) {
    engine_->OnFailed(std::move(status));
  } else {
    Fail(absl::Status(status.code(),
                      absl::StrCat("the initial weights did not arrive: ",
                                   status.message())));
  }
}

void JobRuntime::OnGatherFailed(const absl::Status& why) {
  if (absl::IsUnavailable(why) && CanRelink()) return OnLinkLost(why);
  Leave(why);
}

absl::Status JobRuntime::MakeCollective(Generation generation) {
  collective::Parts parts = CollectiveParts();
  if (weights_ != nullptr) weights_->AddTo(&parts);
  ASSIGN_OR_RETURN(collective_,
                   collective::Collective::Create(parts, generation));
  return absl::OkStatus();
}

collective::Parts JobRuntime::CollectiveParts() {
  session::LocalJob* const job = parts_.job;
  collective::Parts parts;
  parts.layout = &job->layout();
  parts.node = job->node();
  parts.job_key = Checksum(job->spec().name);
  parts.kernels = parts_.kernels;
  parts.pool = parts_.pool;
  parts.device = parts_.device;
  parts.transport = routes_.transport();
  parts.halves = [this](uint64_t bytes) { return routes_.Halves(bytes); };
  for (int l = 0; l < job->local_world_size(); ++l) {
    parts.gradients.push_back(job->gradients(LocalRank(l)));
  }
  parts.weights = job->weights();
  parts.state_gradient = state_->gradient();
  parts.plan = plan_.get();
  parts.master = state_->master();
  parts.published = published_.get();
  parts.pulls = peers_ != nullptr ? peers_->pulls() : nullptr;
  parts.executor = parts_.executor;
  parts.pull_timeout = parts_.peer_timeout;
  parts.log = [this](const std::string& what) {
    heals_.Log(absl::StrCat("job ", parts_.job->spec().name, ": ", what));
  };
  parts.residuals = residuals_.get();
  parts.optimizer_step = state_->scalars().optimizer_step;
  parts.guard = snapshots_ != nullptr ? snapshots_->guard() : nullptr;
  parts.buckets_in_flight = parts_.buckets_in_flight;
  parts.batch_bytes = parts_.batch_bytes;
  parts.clock = parts_.clock;
  parts.observer = this;
  return parts;
}

void JobRuntime::CancelCollective(absl::AnyInvocable<void() &&> then) {
  is_cancelling_ = true;
  collective_->Cancel([this, then = std::move(then)]() mutable {
    Post([this, then = std::move(then)]() mutable {
      is_cancelling_ = false;
      collective_.reset();
      std::move(then)();
      FinishStopIfQuiet();
      MeetIfQuiet();
    });
  });
}

// ---- The end. ----

void JobRuntime::Fail(const absl::Status& why) {
  Post([this, why] { parts_.host->FailJob(parts_.job, why); });
}

// A node that ends the job says why, and then its links break: its word, by
// way of the coordinator, is the better reason and may come a little later.
void JobRuntime::FailSoon(const absl::Status& why) {
  if (fail_timer_ != 0) return;
  fail_timer_ = parts_.executor->PostAfter(kLastWord, [this, why] {
    fail_timer_ = 0;
    parts_.host->FailJob(parts_.job, why);
  });
}

void JobRuntime::Stop(const absl::Status& why,
                      absl::AnyInvocable<void() &&> done) {
  stopped_ = std::move(done);
  stop_reason_ = why;
  if (why.ok() && !has_ended_) {
    const auto leave = [this, alive = std::weak_ptr<int>(alive_)] {
      // While the nodes meet there is nobody to tell (GoOn).
      if (alive.expired() || has_ended_ || is_quieting_ || is_meeting_) return;
      membership_->Leave(absl::OkStatus());  // OnEnded when all nodes did
    };
    if (snapshots_ == nullptr) return leave();
    return snapshots_->WhenIdle(leave);  // what is being written gets whole
  }
  if (!has_ended_) {
    if (peers_ != nullptr) peers_->TellNow();  // who closed, before the end
    membership_->Leave(why);
  }
  // A node that lost its workers may come again; one whose workers closed the
  // job will not.
  if (peers_ != nullptr && parts_.job->num_closed() > 0) peers_->GiveUp(why);
  BeginStop();
}

void JobRuntime::BeginStop() {
  if (is_stopping_) return;
  is_stopping_ = true;
  parts_.executor->Cancel(std::exchange(lost_timer_, 0));
  parts_.executor->Cancel(std::exchange(relink_timer_, 0));
  if (peers_ != nullptr) peers_->Stop();
  engine_->Stop();
  if (loading_ != nullptr) loading_->Cancel();
  if (resume_ != nullptr) resume_->Cancel();
  if (snapshots_ != nullptr) {
    is_saving_ = true;
    snapshots_->Stop(stop_reason_, [this] {
      is_saving_ = false;
      FinishStopIfQuiet();
    });
  }
  if (weights_ != nullptr) weights_->Stop([this] { FinishStopIfQuiet(); });
  if (collective_ != nullptr && !is_cancelling_) {
    CancelCollective([] {});
  } else {
    FinishStopIfQuiet();
  }
}

void JobRuntime::FinishStopIfQuiet() {
  if (!is_stopping_ || !stopped_ || collective_ != nullptr ||
      engine_->updates_in_flight() > 0 || is_saving_ || loading_ != nullptr ||
      (resume_ != nullptr && !resume_->is_idle()) ||
      (weights_ != nullptr && !weights_->is_idle())) {
    return;
  }
  Post(std::exchange(stopped_, nullptr));
}

void JobRuntime::Post(absl::AnyInvocable<void() &&> fn) {
  parts_.executor->Post(
      [alive = std::weak_ptr<int>(alive_), fn = std::move(fn)]() mutable {
        if (!alive.expired()) std::move(fn)();
      });
}

// What this node's own workers owe.
std::string JobRuntime::OwnWaitingFor() const {
  const session::LocalJob& job = *parts_.job;
  std::vector<std::string> waiting = {job.Closing()};
  const bool is_closed = job.num_closed() == job.local_world_size();
  if (has_started_ && !is_closed && !engine_->is_collected()) {
    waiting.push_back(engine_->WaitingFor(parts_.clock->Now()));
  }
  waiting.push_back(job.Missing());
  std::erase(waiting, "");
  if (!waiting.empty()) {
    waiting.push_back(processes_->Describe(job, parts_.clock->Now()));
    std::erase(waiting, "");
  }
  return absl::StrJoin(waiting, "; ");
}

std::optional<ipc::ProcessState> JobRuntime::process_state(
    LocalRank rank) const {
  return processes_->StateOf(*parts_.job, rank, parts_.clock->Now());
}

std::optional<v1::EarlyClose> JobRuntime::OwnEarlyClose() const {
  const auto close = parts_.job->early_close();
  if (!close.has_value()) return std::nullopt;
  v1::EarlyClose proto;
  proto.set_rank(close->rank.value());
  proto.set_step(close->step.value());
  return proto;
}

void JobRuntime::OnPeerClosed(const v1::EarlyClose& close) {
  if (is_stopping_ || close.rank() < 0 || close.step() < 1 ||
      close.rank() >= parts_.job->layout().topology().world_size()) {
    return;
  }
  parts_.job->OnClosedElsewhere({Rank(close.rank()), Step(close.step())});
}

std::string JobRuntime::WaitingFor() const {
  if (loading_ != nullptr) {
    return absl::StrCat("this node reads snapshot ",
                        parts_.job->spec().stored->path);
  }
  if (relinking_.is_active() && (is_quieting_ || is_meeting_)) {
    return absl::StrCat(relinking_.Describe(parts_.clock->Now()), ": ",
                        peers_ != nullptr && !is_quieting_
                            ? peers_->WaitingFor()
                            : "what is on its way here ends");
  }
  std::string waiting = OwnWaitingFor();
  if (waiting.empty() && resume_ != nullptr) waiting = resume_->WaitingFor();
  if (waiting.empty() && peers_ != nullptr) waiting = peers_->WaitingFor();
  if (waiting.empty() && has_started_) {
    waiting = engine_->WaitingFor(parts_.clock->Now());
  }
  if (waiting.empty() && collective_ != nullptr) {
    waiting = collective_->WaitingFor();
  }
  if (waiting.empty() && weights_ != nullptr) waiting = weights_->WaitingFor();
  return waiting.empty() ? membership_->WaitingFor() : waiting;
}

}  // namespace ballast::daemon
