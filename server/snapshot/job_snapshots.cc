#include "server/snapshot/job_snapshots.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/snapshot_outcome.h"

namespace ballast::snapshot {
namespace {

constexpr absl::Duration kRepeatEvery = absl::Milliseconds(500);
// How long steps are held for a node that does not answer.
constexpr absl::Duration kArmLimit = absl::Seconds(10);
constexpr size_t kMaxOutcomes = 32;

bool IsId(const std::string& id) {
  uint64_t value;
  return FromHex16(id, &value);
}

}  // namespace

JobSnapshots::JobSnapshots(const Parts& parts)
    : parts_(parts),
      plan_(*parts.layout, parts.node,
            {parts.state->num_moments(), parts.has_published,
             parts.residuals != nullptr, parts.gathers_weights}),
      capture_(&plan_, parts.state, parts.weights, parts.residuals,
               parts.encoded),
      io_(parts.io),
      memory_(parts.io),
      replicas_(MakeReplicas()),
      last_due_(parts.clock->Now()),
      alive_(std::make_shared<int>(0)) {}

JobSnapshots::~JobSnapshots() { parts_.executor->Cancel(repeat_); }

std::unique_ptr<JobReplicas> JobSnapshots::MakeReplicas() {
  if (parts_.held == nullptr) return nullptr;
  JobReplicas::Parts replicas;
  replicas.job = parts_.job.job;
  replicas.topology = parts_.layout->topology();
  replicas.node = parts_.node;
  replicas.files = parts_.held;
  replicas.io = parts_.io;
  replicas.clock = parts_.clock;
  replicas.executor = parts_.executor;
  replicas.max_bytes_per_second = parts_.replicas.max_bytes_per_second;
  replicas.is_busy = parts_.is_link_busy;
  replicas.on_idle = [this] { RunIdle(); };
  return std::make_unique<JobReplicas>(std::move(replicas));
}

// ---- The job. ----

void JobSnapshots::SetPulls(transport::Pulls* pulls) {
  is_linked_ = pulls != nullptr;
  if (replicas_ != nullptr) replicas_->SetPulls(pulls);
}

void JobSnapshots::OnStarted(WeightVersion version, WeightVersion replicated) {
  is_started_ = true;
  finished_ = committed_ = version;
  status_.replicas.last_step = replicated.value();
  const Schedule& schedule = parts_.schedule;
  if (schedule.every_steps > 0 || schedule.every < absl::InfiniteDuration() ||
      parts_.replicas.every_steps > 0) {
    TakeMemory();
  }
  StartNext();
  BeginIfReady();
}

void JobSnapshots::OnCommitted(Step step) {
  committed_ = WeightVersion(step.value());
}

void JobSnapshots::OnFinished(Step step) {
  finished_ = WeightVersion(step.value());
  AskForDue(step);
  BeginIfReady();
}

bool JobSnapshots::IsSnapshotDue(Step step) {
  if (parts_.files == nullptr) return false;
  const Schedule& schedule = parts_.schedule;
  const absl::Time now = parts_.clock->Now();
  const bool is_due =
      (schedule.every_steps > 0 && step.value() % schedule.every_steps == 0) ||
      now - last_due_ >= schedule.every;
  if (is_due) last_due_ = now;
  return is_due;
}

void JobSnapshots::AskForDue(Step step) {
  if (!is_coordinator() || is_stopped_) return;
  const bool is_busy = active_.has_value() || !wishes_.empty();
  const int64_t every = parts_.replicas.every_steps;
  // It waits for a replica that is under way, and is not left out for it.
  if (IsSnapshotDue(step)) {
    const bool is_saving = (active_.has_value() && !active_->is_replica) ||
                           std::ranges::any_of(wishes_, [](const Wish& wish) {
                             return !wish.is_replica;
                           });
    if (is_saving) {
      ++status_.skipped;
    } else if (!status_.other_life.empty()) {
      ++status_.superseded;
      LookForOtherLife();
    } else {
      AddWish({ToHex16(parts_.random->Next()), ""});
    }
  }
  if (replicas_ == nullptr || every == 0 || step.value() % every != 0) return;
  if (is_busy) {
    ++status_.replicas.skipped;
    return;
  }
  AddWish({ToHex16(parts_.random->Next()), "", /*is_replica=*/true});
}

void JobSnapshots::Save(const std::string& name, SaveDone done) {
  absl::Status refusal;
  if (is_stopped_) refusal = absl::UnavailableError("the job is ending");
  if (refusal.ok() && parts_.files == nullptr) {
    refusal = absl::FailedPreconditionError(
        "this daemon keeps no snapshots: set its snapshots.directory");
  }
  if (refusal.ok() && !name.empty()) refusal = CheckSnapshotName(name);
  if (refusal.ok() && waiting_.size() >= kMaxWishes) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(),
                     " snapshots of this job are being "
                     "waited for already"));
  }
  if (!refusal.ok()) {
    parts_.executor->Post([refusal, done = std::move(done)]() mutable {
      std::move(done)(refusal);
    });
    return;
  }
  Ask({ToHex16(parts_.random->Next()), name}, std::move(done));
}

void JobSnapshots::SaveLast(SaveDone done) {
  absl::Status refusal;
  if (is_stopped_) refusal = absl::UnavailableError("the job is ending");
  if (refusal.ok()) refusal = CheckLast();
  if (refusal.ok() && num_nodes() > 1 && !is_linked_) {
    refusal = absl::UnavailableError("its nodes have lost one another");
  }
  if (!refusal.ok()) {
    parts_.executor->Post([refusal, done = std::move(done)]() mutable {
      std::move(done)(refusal);
    });
    return;
  }
  last_ids_.push_back(ToHex16(parts_.random->Next()));
  Ask({last_ids_.back(), "", /*is_replica=*/true, /*is_last=*/true},
      std::move(done));
}

// Whether this node's part of the job may end.
absl::Status JobSnapshots::CheckLast() const {
  if (replicas_ == nullptr) {
    return absl::FailedPreconditionError("it keeps no replicas");
  }
  const std::string attached = parts_.port->AttachedWorkers();
  if (attached.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(attached, " is still attached to it"));
}

void JobSnapshots::Ask(Wish wish, SaveDone done) {
  waiting_[wish.id].push_back(std::move(done));
  if (is_coordinator()) return AddWish(std::move(wish));
  asked_.push_back(std::move(wish));
  Repeat();
}

// ---- Outcomes. ----

void JobSnapshots::OnOutcome(const v1::SnapshotFrame& frame) {
  const v1::SnapshotOutcome& outcome = frame.outcome();
  const absl::Status status = ToStatus(outcome);
  absl::StatusOr<Saved> saved =
      Saved{outcome.path().substr(0, kMaxOutcomeTextBytes), outcome.version(),
            outcome.size_bytes()};
  if (!status.ok()) saved = status;
  if (!is_coordinator()) Remember(frame);
  std::erase(last_ids_, frame.id());
  std::erase_if(asked_,
                [&](const Wish& wish) { return wish.id == frame.id(); });
  std::vector<SaveDone> waiters;
  if (const auto it = waiting_.find(frame.id()); it != waiting_.end()) {
    waiters = std::move(it->second);
    waiting_.erase(it);
  }
  if (active_.has_value() && active_->id == frame.id()) {
    active_->is_concluded = true;
    active_->is_superseded = outcome.superseded();
    EndActive(saved);
  }
  for (SaveDone& done : waiters) {
    parts_.executor->Post([saved, done = std::move(done)]() mutable {
      std::move(done)(std::move(saved));
    });
  }
  StartNext();
  RunIdle();
}

void JobSnapshots::Remember(v1::SnapshotFrame outcome) {
  outcomes_.push_back(std::move(outcome));
  if (outcomes_.size() > kMaxOutcomes) outcomes_.pop_front();
}

const v1::SnapshotFrame* JobSnapshots::Outcome(const std::string& id) const {
  for (const v1::SnapshotFrame& frame : outcomes_) {
    if (frame.id() == id) return &frame;
  }
  return nullptr;
}

void JobSnapshots::OnLinksLost(const absl::Status& why) {
  SetPulls(nullptr);
  const absl::Status status = absl::AbortedError(absl::StrCat(
      "nodes were lost while it was written: ", std::string(why.message())));
  ForgetLast(status);
  if (!active_.has_value()) return;
  if (is_coordinator()) return Conclude(active_->id, status, 0);
  // Node 0 may have heard that all hold it, and dropped the one before it.
  active_->is_orphaned = true;
  EndActive(status);
  RunIdle();
}

// Whoever waits to end the job need not wait for nodes that may stay away.
void JobSnapshots::ForgetLast(const absl::Status& why) {
  std::erase_if(wishes_, [](const Wish& wish) { return wish.is_last; });
  std::erase_if(asked_, [](const Wish& wish) { return wish.is_last; });
  for (const std::string& id : std::exchange(last_ids_, {})) {
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) continue;
    for (SaveDone& done : it->second) {
      parts_.executor->Post(
          [why, done = std::move(done)]() mutable { std::move(done)(why); });
    }
    waiting_.erase(it);
  }
}

// ---- Frames. ----

void JobSnapshots::Send(NodeRank to, const std::string& id,
                        v1::SnapshotFrame frame) {
  frame.set_id(id);
  parts_.port->SendSnapshot(to, frame);
}

void JobSnapshots::OnFrame(NodeRank from, const v1::SnapshotFrame& frame) {
  if (!IsId(frame.id()) || from.value() < 0 || from.value() >= num_nodes() ||
      from == parts_.node) {
    return;
  }
  if (!is_coordinator()) {
    if (from != NodeRank(0)) return;
    if (frame.has_order()) OnOrder(frame.id(), frame.order());
    if (frame.has_collect()) OnCollect(frame);
    const bool is_awaited = waiting_.contains(frame.id()) ||
                            (active_.has_value() && active_->id == frame.id());
    if (frame.has_outcome() && is_awaited) OnOutcome(frame);
    return;
  }
  if (frame.has_wish()) return OnWish(from, frame.id(), frame.wish());
  if (active_.has_value() && active_->id == frame.id()) {
    if (frame.has_armed()) OnArmed(from);
    if (frame.has_shard()) {
      OnShard(from, {"", frame.shard().size_bytes(),
                     frame.shard().header_checksum()});
    }
    if (frame.has_held()) OnHeld(from);
    if (frame.has_outcome()) OnNodeFailed(from, frame.outcome());
    return;
  }
  if (const v1::SnapshotFrame* outcome = Outcome(frame.id());
      outcome != nullptr) {
    parts_.port->SendSnapshot(from, *outcome);
  }
}

void JobSnapshots::OnCollect(const v1::SnapshotFrame& frame) {
  if (!active_.has_value() || active_->id != frame.id() ||
      !active_->is_replica || !active_->shard.has_value() ||
      active_->collect.has_value()) {
    return;
  }
  active_->collect = {frame.collect().manifest_bytes(),
                      frame.collect().manifest_checksum()};
  Collect();
}

void JobSnapshots::ArmRepeat() {
  if (repeat_ != 0 || num_nodes() == 1 || is_stopped_) return;
  repeat_ = parts_.executor->PostAfter(kRepeatEvery, [this] {
    repeat_ = 0;
    Repeat();
  });
}

void JobSnapshots::Repeat() {
  for (const Wish& wish : asked_) {
    v1::SnapshotFrame frame;
    frame.mutable_wish()->set_name(wish.name);
    frame.mutable_wish()->set_last(wish.is_last);
    Send(NodeRank(0), wish.id, std::move(frame));
  }
  if (active_.has_value() && !is_coordinator()) TellCoordinator();
  if (active_.has_value() && active_->holds_steps) {
    if (parts_.clock->Now() - active_->since >= kArmLimit) {
      for (int n = 0; n < num_nodes(); ++n) {
        if (active_->armed[n]) continue;
        Conclude(active_->id,
                 absl::DeadlineExceededError(absl::StrCat(
                     "node ", n, " did not answer within ",
                     absl::FormatDuration(kArmLimit), " that it takes part")));
        break;
      }
    }
  }
  if (active_.has_value() && active_->holds_steps) {
    for (int n = 1; n < num_nodes(); ++n) {
      if (!active_->armed[n]) SendOrder(NodeRank(n));
    }
  }
  if (active_.has_value() && is_coordinator() && active_->collect.has_value()) {
    for (int n = 1; n < num_nodes(); ++n) {
      if (!active_->held[n]) SendCollect(NodeRank(n));
    }
  }
  if (active_.has_value() || !asked_.empty()) ArmRepeat();
}

// ---- The end. ----

void JobSnapshots::WhenIdle(absl::AnyInvocable<void() &&> fn) {
  when_idle_.push_back(std::move(fn));
  std::erase_if(wishes_, [](const Wish& wish) {
    return wish.is_replica && !wish.is_last;
  });
  if (is_coordinator() && active_.has_value() && active_->is_replica &&
      !active_->is_last) {
    return ConcludeLater(absl::CancelledError("the job was closed"));
  }
  RunIdle();
}

void JobSnapshots::RunIdle() {
  const bool is_quiet = writer_ == nullptr && io_.is_idle() &&
                        memory_.is_idle() &&
                        (replicas_ == nullptr || replicas_->is_idle());
  if (active_.has_value() || !wishes_.empty() || !asked_.empty() || !is_quiet) {
    return;
  }
  for (auto& fn : std::exchange(when_idle_, {})) {
    parts_.executor->Post(std::move(fn));
  }
  if (is_stopped_ && stopped_) {
    parts_.executor->Post(std::exchange(stopped_, nullptr));
  }
}

void JobSnapshots::Stop(const absl::Status& why,
                        absl::AnyInvocable<void() &&> done) {
  stopped_ = std::move(done);
  if (is_stopped_) return RunIdle();
  is_stopped_ = true;
  const absl::Status reason =
      why.ok() ? absl::AbortedError("the job was closed") : why;
  parts_.executor->Cancel(std::exchange(repeat_, 0));
  wishes_.clear();
  asked_.clear();
  if (active_.has_value()) EndActive(reason);
  SetPulls(nullptr);
  if (replicas_ != nullptr) replicas_->Close();
  for (auto& [id, waiters] : std::exchange(waiting_, {})) {
    for (SaveDone& waiter : waiters) {
      parts_.executor->Post([reason, waiter = std::move(waiter)]() mutable {
        std::move(waiter)(reason);
      });
    }
  }
  RunIdle();
}

SnapshotStatus JobSnapshots::status() const {
  SnapshotStatus status = status_;
  status.is_saving = active_.has_value();
  if (writer_ != nullptr) {
    status.bytes_written = writer_->bytes_written();
    status.bytes_total = writer_->bytes_total();
  }
  status.bytes_by_updates = capture_.bytes_by_updates();
  if (replicas_ == nullptr) return status;
  ReplicaStatus& replicas = status.replicas;
  replicas.is_enabled = true;
  replicas.lag_steps =
      std::max<int64_t>(0, finished_.value() - replicas.last_step);
  replicas.held_bytes =
      parts_.held->bytes_in_use() + parts_.held->spare_bytes();
  replicas.bytes_sent = replicas_->courier().bytes_sent();
  replicas.bytes_received = replicas_->courier().bytes_received();
  return status;
}

}  // namespace ballast::snapshot
