// JobRuntime's side that meets the other nodes.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/daemon/job_budget.h"
#include "server/daemon/job_join.h"
#include "server/daemon/job_progress.h"
#include "server/daemon/job_runtime.h"

namespace ballast::daemon {
// ---- Between the nodes. ----

void JobRuntime::JoinOthers() {
  if (num_nodes_ == 1) return membership_->Join(MakeJoin());
  LinksRequest request;
  request.job = parts_.job->spec().name;
  request.node = parts_.job->node();
  request.incarnation = incarnation_;
  request.coordinator = parts_.job->spec().coordinator;
  request.join = MakeJoin();
  request.join.clear_progress();
  peers_ = std::make_unique<JobPeers>(
      JobPeers::Parts{.plane = parts_.peers,
                      .job_key = Checksum(parts_.job->spec().name),
                      .clock = parts_.clock,
                      .executor = parts_.executor,
                      .metrics = parts_.metrics.get(),
                      .host = this},
      std::move(request));
  peers_->Open();
}

v1::Join JobRuntime::MakeJoin() const {
  session::JobSpec spec = parts_.job->spec();
  if (resumption_.has_value()) {
    // What it once began from is over, and no record has it.
    spec.stored.reset();
    spec.asks_nodes = true;
  }
  v1::Join join = daemon::MakeJoin(
      spec, parts_.job->layout(), plan_->policy(), parts_.default_hold,
      parts_.algorithms, parts_.snapshot_files != nullptr, held_ != nullptr);
  *join.mutable_link_cost() = routes_.measured();
  if (is_loaded_ || resumption_.has_value()) {
    join.set_has_state(true);
    join.set_weight_version(state_->scalars().step.value());
    join.set_optimizer_step(state_->scalars().optimizer_step);
  }
  if (resumption_.has_value()) {
    join.set_generation(resumption_->generation.value());
    *join.mutable_progress() =
        MakeProgress(*record_, state_->scalars(), parts_.job->node());
  }
  join.set_says_ready(num_nodes_ > 1);
  return join;
}

void JobRuntime::CastVote(const v1::Vote& vote) { membership_->CastVote(vote); }

void JobRuntime::Leave(const absl::Status& why) {
  if (num_nodes_ == 1) return Fail(why);
  FailSoon(why);
}

void JobRuntime::Send(NodeRank to, const v1::PeerFrame& frame) {
  if (peers_ != nullptr) peers_->Send(to, frame);
}

void JobRuntime::OnLinked() {
  if (weights_ != nullptr) weights_->SetPulls(peers_->pulls());
  if (resume_ != nullptr && !has_started_) return AgreeOnState();
  if (snapshots_ != nullptr) snapshots_->SetPulls(peers_->pulls());
  Measure();
}

void JobRuntime::Measure() {
  if (num_nodes_ == 1) return membership_->Join(MakeJoin());
  routes_.Measure(peers_->transport(), [this](const absl::Status& status) {
    if (is_stopping_) return;
    if (!status.ok()) return OnLinkLost(status);
    membership_->Join(MakeJoin());
  });
}

void JobRuntime::OnPeersLost(const absl::Status& why) {
  if (is_meeting_ && absl::IsUnavailable(why) && CanRelink()) {
    return OnLinkLost(why);  // these links only
  }
  // Between nodes that meet Aborted is what Unavailable is to workers, who may
  // open the job anew.
  const bool is_over = is_meeting_ && absl::IsAborted(why);
  if (!stopped_) {
    return FailSoon(is_over ? absl::UnavailableError(why.message()) : why);
  }
  // The workers here have closed the job: nothing is owed to anyone.
  membership_->Leave(why);
  has_ended_ = true;
  BeginStop();
}

// ---- Links that are lost, and made again. ----

bool JobRuntime::CanRelink() const {
  return num_nodes_ > 1 && relinking_.may_begin() && has_started_ &&
         !has_ended_ && !is_stopping_;
}

// A node that ends the job says why, and then its links break: see FailSoon.
void JobRuntime::OnLinkLost(const absl::Status& why) {
  if (is_stopping_ || is_quieting_) return;
  if (!CanRelink()) return OnPeersLost(why);
  if (lost_timer_ != 0) return;
  lost_timer_ = parts_.executor->PostAfter(kLastWord, [this, why] {
    lost_timer_ = 0;
    Relink(why);
  });
}

void JobRuntime::OnLost(absl::Status why) {
  if (!CanRelink()) return OnEnded(std::move(why));
  Relink(why);
}

void JobRuntime::OnAllLinked() {
  if (!relinking_.is_active() || is_meeting_ || is_quieting_) return;
  if (parts_.log != nullptr) {
    parts_.log(absl::StrCat("nodes linked again job=", parts_.job->spec().name,
                            " step=", engine_->open_step().value(),
                            " generation=", generation_.value()));
  }
  relinking_.End();
  parts_.executor->Cancel(std::exchange(relink_timer_, 0));
  ShowAbsent();
}

void JobRuntime::StartRelinking(const absl::Status& why) {
  if (!relinking_.Begin(why, parts_.clock->Now())) return;
  if (parts_.metrics != nullptr) {
    parts_.metrics->counter(metrics::Family::kRelinks)->Increment();
  }
  if (parts_.warn) {
    parts_.warn(absl::StrCat("links lost job=", parts_.job->spec().name,
                             " reason=\"", std::string(why.message()), "\""));
  }
  // Workers that have closed the job wait for nobody.
  const absl::Duration patience =
      stopped_ ? std::min(relinking_.timeout(), parts_.peer_timeout)
               : relinking_.timeout();
  relink_timer_ = parts_.executor->PostAfter(patience, [this] {
    relink_timer_ = 0;
    OnRelinkExpired();
  });
}

void JobRuntime::OnRelinkExpired() {
  const absl::Status why =
      relinking_.Expired(peers_ != nullptr ? peers_->WaitingFor() : "");
  if (peers_ != nullptr) peers_->GiveUp(why);
  if (!stopped_) return Fail(why);
  has_ended_ = true;
  BeginStop();
}

// What is on its way ends first; then the old links go, and new ones are made
// in another life of the membership. What this node has of the job stays as it
// is, so it goes on as if its daemon had been replaced.
void JobRuntime::Relink(const absl::Status& why) {
  if (!CanRelink() || is_quieting_) return;
  parts_.executor->Cancel(std::exchange(lost_timer_, 0));
  StartRelinking(why);
  is_quieting_ = true;
  if (snapshots_ != nullptr) snapshots_->OnLinksLost(why);
  membership_->Relink(why);
  if (peers_ != nullptr) peers_->Stop();
  engine_->Suspend();
  parts_.job->Suspend();
  load_->Abandon();
  // After the engine has counted what its pulls have moved.
  if (weights_ != nullptr) weights_->Suspend([this] { MeetIfQuiet(); });
  if (collective_ != nullptr && !is_cancelling_) CancelCollective([] {});
  MeetIfQuiet();
}

void JobRuntime::MeetIfQuiet() {
  if (!is_quieting_ || collective_ != nullptr || is_cancelling_ ||
      engine_->updates_in_flight() > 0 ||
      (weights_ != nullptr && !weights_->is_idle())) {
    return;
  }
  // Not from inside what is released.
  Post([this] { Meet(); });
}

void JobRuntime::Meet() {
  if (!is_quieting_ || is_stopping_) return;
  is_quieting_ = false;
  is_meeting_ = true;
  routes_.Close();
  peers_.reset();
  incarnation_ = Incarnation(parts_.random->Next());
  const membership::BudgetState budget = membership_->budget();
  MakeMembership();
  membership_->RestoreBudget(budget);
  auto resumption =
      Resume(record_->last(), state_->scalars().step, record_->finished());
  if (!resumption.ok()) return Fail(resumption.status());
  resumption_ = *std::move(resumption);
  JoinOthers();
  ShowAbsent();
}

void JobRuntime::ShowAbsent() const {
  if (parts_.metrics == nullptr || num_nodes_ == 1) return;
  const int linked = peers_ == nullptr ? 0 : peers_->Count(PeerState::kReady);
  parts_.metrics->gauge(metrics::Family::kPeersAbsent)
      ->Set(relinking_.is_active() ? num_nodes_ - 1 - linked : 0);
}

// ---- What the members say. ----

void JobRuntime::OnPeerFrame(NodeRank from, const v1::PeerFrame& frame) {
  if (frame.has_resume()) {
    if (resume_ != nullptr && frame.job() == parts_.job->spec().name) {
      resume_->OnFrame(from, frame.resume());
    }
    return;
  }
  if (frame.has_snapshot()) {
    if (snapshots_ != nullptr && frame.job() == parts_.job->spec().name) {
      snapshots_->OnFrame(from, frame.snapshot());
    }
    return;
  }
  membership_->OnFrame(from, frame);
}

void JobRuntime::OnView(Generation generation, const v1::View& view) {
  if (is_stopping_) return;
  generation_ = generation;
  first_step_ = Step(view.open_step());
  awaits_start_ = view.awaits_ready();
  if (peers_ != nullptr) routes_.Open(view.link_cost());
  if (weights_ != nullptr) {
    weights_->SetGeneration(generation);
    weights_->TakeInitial(is_loaded_);
  }
  if (resumption_.has_value()) RevertChanges(view.commit(), plan_.get());
  const absl::Status made = MakeCollective(generation);
  if (!made.ok()) return Fail(made);
  if (resumption_.has_value()) return GoOn(view);
  if (num_nodes_ == 1) return StartFirst();
  if (parts_.log != nullptr) {
    parts_.log(absl::StrCat("exchanges job=", parts_.job->spec().name, " ",
                            routes_.Describe()));
  }
  if (is_loaded_) return StartFirst();
  collective_->StartBroadcast(NodeRank(0), Step(0));
  BALLAST_FAILPOINT("daemon.weights_leave");
}

void JobRuntime::OnBroadcast() {
  if (is_stopping_) return;
  if (!has_started_) return StartFirst();
  if (!load_->is_running()) return;
  load_->Finish();
  BALLAST_FAILPOINT("daemon.load_finished");
  // From here on the gradients may be others: it is not loaded again.
  if (record_ != nullptr) {
    record_->SetLoaded(Step(engine_->open_step().value() - 1));
  }
  engine_->OnLoaded();
}

void JobRuntime::StartFirst() {
  BALLAST_FAILPOINT("daemon.weights_there");
  has_started_ = true;
  if (!is_loaded_) {
    optimizer_->InitializeFromWeights(optimizer::Moments::kZero);
  }
  if (published_ != nullptr) {
    published_->Initialize(parts_.job->weights(),
                           WeightVersion(first_step_.value() - 1));
  }
  if (weights_ != nullptr) {
    weights_->Begin(WeightVersion(first_step_.value() - 1));
  }
  if (record_ != nullptr) {
    record_->Begin(first_step_, state_->scalars().optimizer_step);
  }
  BALLAST_FAILPOINT("daemon.begun");
  if (snapshots_ != nullptr) {
    const WeightVersion version(first_step_.value() - 1);
    snapshots_->OnStarted(version, version);
  }
  if (!awaits_start_ || BALLAST_SABOTAGED("daemon.starts_alone")) {
    return OnStart();
  }
  // As a job that was taken over: what workers are told comes with the start.
  parts_.job->TakeOver(generation_, first_step_, /*is_open=*/true);
  membership_->Ready();
}

void JobRuntime::OnStart() {
  if (is_stopping_) return;
  engine_->Start(generation_, first_step_, collective_.get());
}

// All nodes agree on where the job goes on (membership/rejoin.h).
void JobRuntime::GoOn(const v1::View& view) {
  is_meeting_ = false;
  has_started_ = true;
  resumption_.reset();
  if (holds_steps_) membership_->HoldSteps().IgnoreError();
  const Step state = state_->scalars().step;
  if (parts_.is_taken_over && !std::exchange(has_gone_on_, true)) {
    committed_ = finished_ = record_->finished();
    if (snapshots_ != nullptr) {
      // Replicas go with the daemon that holds them.
      snapshots_->OnStarted(WeightVersion(finished_.value()), WeightVersion(0));
    }
    parts_.job->RestoreRank0Cursor(view.rank0_cursor());
  }
  if (parts_.log != nullptr && num_nodes_ > 1) {
    parts_.log(absl::StrCat("exchanges job=", parts_.job->spec().name, " ",
                            routes_.Describe()));
  }
  BALLAST_FAILPOINT("relink.agreed");
  const absl::Status kept = KeepOutcome(generation_, view, *plan_, record_);
  if (!kept.ok()) return Fail(kept);
  BALLAST_FAILPOINT("relink.recorded");
  if (weights_ != nullptr) {
    weights_->GoOn(WeightVersion(first_step_.value() - 1),
                   /*is_published=*/!view.has_commit());
  }
  if (!view.has_commit()) {
    parts_.job->TakeOver(
        generation_, first_step_, /*is_open=*/true,
        view.has_abort() ? engine::WhyAborted(view.abort()) : absl::OkStatus());
    engine_->Start(generation_, first_step_, collective_.get());
  } else {
    const absl::Status status = GoOnFrom(view.commit(), state);
    if (!status.ok()) return Fail(status);
  }
  // Not only when the links are looked at next: the job may have ended by then.
  if (peers_ != nullptr && peers_->Count(PeerState::kReady) == num_nodes_ - 1) {
    OnAllLinked();
  }
  Post([this] {
    if (is_stopping_) return;
    if (stopped_) {
      if (stop_reason_.ok()) membership_->Leave(absl::OkStatus());
    } else {
      parts_.host->OnWentOn(parts_.job);
    }
  });
}

absl::Status JobRuntime::GoOnFrom(const v1::Commit& commit, Step state) {
  const Step step(commit.step());
  const bool is_adopted = state < step;
  parts_.job->TakeOver(generation_, step, /*is_open=*/is_adopted);
  if (is_adopted) {
    engine_->Adopt(generation_, commit, collective_.get());
    return absl::OkStatus();
  }
  // Of several nodes any may still need what was loaded: all load again.
  const bool is_loaded = num_nodes_ == 1 && record_->loaded() == step;
  return engine_->GoOn(generation_, commit, is_loaded, collective_.get());
}

bool JobRuntime::Keep(const v1::PeerFrame& outcome) {
  if (record_ == nullptr) return true;
  const absl::Status kept = KeepOutcome(outcome, *plan_, record_);
  if (!kept.ok()) Leave(kept);
  return kept.ok();
}

void JobRuntime::OnCommit(const v1::Commit& commit) {
  if (!Keep(OutcomeOf(generation_, commit))) return;
  if (weights_ == nullptr || commit.step() != engine_->open_step().value()) {
    engine_->OnCommit(commit);
    return LogCodecChanges(parts_.job->spec().name, parts_.job->layout(),
                           *plan_, commit, parts_.log);
  }
  // Nothing else comes between a commit and what it orders but the job's end,
  // or the links': it is recorded.
  weights_->OnCommit([this, commit] {
    if (!is_stopping_) engine_->OnCommit(commit);
  });
}

void JobRuntime::OnAbort(const v1::Abort& abort) {
  if (is_stopping_) return;
  if (!Keep(OutcomeOf(generation_, abort))) return;
  engine_->OnAbort(abort);
  generation_ = Generation(abort.next_generation());
  if (weights_ != nullptr) weights_->SetGeneration(generation_);
  CancelCollective([this, step = Step(abort.step())] {
    if (is_stopping_ || is_quieting_) return;
    const absl::Status made = MakeCollective(generation_);
    if (!made.ok()) return Fail(made);
    engine_->Start(generation_, step, collective_.get());
  });
}

void JobRuntime::OnHeal(const v1::Heal& heal) {
  if (!is_stopping_) engine_->OnHeal(heal);
}

void JobRuntime::OnEnded(absl::Status why) {
  has_ended_ = true;
  if (stopped_) {
    BeginStop();
  } else {
    Fail(why.ok() ? absl::AbortedError("the other nodes closed the job") : why);
  }
}

}  // namespace ballast::daemon
