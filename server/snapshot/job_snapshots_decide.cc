// Node 0 decides: JobSnapshots.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/snapshot_outcome.h"

namespace ballast::snapshot {

void JobSnapshots::AddWish(Wish wish) {
  wishes_.push_back(std::move(wish));
  StartNext();
}

void JobSnapshots::StartNext() {
  // A writer that was given up first lets go of the copy.
  if (!is_coordinator() || !is_started_ || is_stopped_ || active_.has_value() ||
      writer_ != nullptr || wishes_.empty()) {
    return;
  }
  const Wish wish = wishes_.front();
  wishes_.pop_front();
  const absl::StatusOr<Step> open = parts_.port->HoldSteps();
  Active active;
  active.id = wish.id;
  active.is_replica = wish.is_replica;
  active.is_last = wish.is_last;
  active.since = parts_.clock->Now();
  active.held.assign(num_nodes(), false);
  active.armed.assign(num_nodes(), false);
  active.shards.resize(num_nodes());
  active.holds_steps = open.ok();
  if (open.ok()) active.version = WeightVersion(open->value() - 1);
  active.name =
      wish.name.empty() ? StepName(active.version.value()) : wish.name;
  absl::Status refusal = open.status();
  if (refusal.ok() && wish.is_last) refusal = CheckLast();
  const bool is_made = wish.is_replica && status_.replicas.made > 0 &&
                       status_.replicas.last_step == active.version.value();
  if (!refusal.ok() || is_made) {
    active_ = std::move(active);
    return Conclude(wish.id, refusal);
  }
  if (!wish.is_replica) Claim(active);
  Arm(std::move(active));
  for (int n = 1; n < num_nodes(); ++n) SendOrder(NodeRank(n));
  OnArmed(parts_.node);
}

// Before anything is written. What an earlier writer left goes first: it may be
// what fills the disk.
void JobSnapshots::Claim(const Active& active) {
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  io_.Run(
      [files = parts_.files, job = parts_.job.job, life = parts_.life,
       since = active.version.value(), has_claimed = has_claimed_,
       id = active.id, status] {
        *status = ClaimLife(*files, job, life, since, has_claimed);
        if (!status->ok()) return;
        RemoveTemporary(*files, job, id).IgnoreError();  // tried again later
      },
      [this, status, id = active.id] {
        has_claimed_ = has_claimed_ || status->ok();
        if (!status->ok()) Conclude(id, *status);
        RunIdle();
      });
}

// Whether that is over: an operator has said so.
void JobSnapshots::LookForOtherLife() {
  if (!io_.is_idle()) return;
  auto status = std::make_shared<absl::Status>();
  io_.Run([files = parts_.files, job = parts_.job.job, life = parts_.life,
           status] { *status = CheckLife(*files, job, life); },
          [this, status] {
            if (status->ok()) status_.other_life.clear();
            RunIdle();
          });
}

void JobSnapshots::SendOrder(NodeRank to) {
  v1::SnapshotFrame frame;
  frame.mutable_order()->set_name(active_->name);
  frame.mutable_order()->set_version(active_->version.value());
  frame.mutable_order()->set_replica(active_->is_replica);
  // Of this life: before it, others may know better.
  frame.mutable_order()->set_whole(
      status_.replicas.made > 0 ? status_.replicas.last_step : -1);
  frame.mutable_order()->set_last(active_->is_last);
  Send(to, active_->id, std::move(frame));
}

void JobSnapshots::OnWish(NodeRank from, const std::string& id,
                          const v1::SnapshotWish& wish) {
  if (const v1::SnapshotFrame* outcome = Outcome(id); outcome != nullptr) {
    return parts_.port->SendSnapshot(from, *outcome);
  }
  const bool is_known =
      (active_.has_value() && active_->id == id) ||
      std::any_of(wishes_.begin(), wishes_.end(),
                  [&](const Wish& other) { return other.id == id; });
  if (is_known) return;
  absl::Status refusal;
  if (!wish.name().empty()) refusal = CheckSnapshotName(wish.name());
  if (refusal.ok() && wishes_.size() >= kMaxWishes) {
    refusal = absl::ResourceExhaustedError(
        "too many snapshots of this job are being waited for");
  }
  if (refusal.ok()) {
    return AddWish({id, wish.name(), /*is_replica=*/wish.last(), wish.last()});
  }
  v1::SnapshotFrame frame;
  frame.set_id(id);
  FillOutcome(refusal, frame.mutable_outcome());
  parts_.port->SendSnapshot(from, frame);
  Remember(std::move(frame));
}

void JobSnapshots::OnArmed(NodeRank from) {
  active_->armed[from.value()] = true;
  const auto& armed = active_->armed;
  if (std::find(armed.begin(), armed.end(), false) == armed.end()) {
    ReleaseSteps();
  }
}

void JobSnapshots::ReleaseSteps() {
  if (!active_.has_value() || !active_->holds_steps) return;
  active_->holds_steps = false;
  parts_.port->ReleaseSteps();
}

void JobSnapshots::OnShard(NodeRank from, FileInfo info) {
  if (active_->is_publishing) return;
  active_->shards[from.value()] = std::move(info);
  const auto& shards = active_->shards;
  if (std::all_of(shards.begin(), shards.end(),
                  [](const auto& shard) { return shard.has_value(); })) {
    Publish();
  }
}

void JobSnapshots::OnNodeFailed(NodeRank from,
                                const v1::SnapshotOutcome& outcome) {
  const absl::Status why = ToStatus(outcome);
  if (why.ok() || (active_->is_publishing && !active_->is_replica)) return;
  ConcludeFailed(absl::Status(
      why.code(),
      absl::StrCat("node ", from.value(), ": ", std::string(why.message()))));
}

void JobSnapshots::Publish() {
  active_->is_publishing = true;
  Manifest manifest = active_->manifest;
  uint64_t size_bytes = 0;
  for (int n = 0; n < num_nodes(); ++n) {
    manifest.files.push_back(*active_->shards[n]);
    manifest.files.back().name = ShardName(n, num_nodes());
    size_bytes += manifest.files.back().size_bytes;
  }
  if (active_->is_replica) return PublishReplica(manifest);
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  io_.Run(
      [files = parts_.files, manifest = std::move(manifest),
       name = active_->name, keep = parts_.schedule.keep, life = parts_.life,
       status] {
        BALLAST_FAILPOINT("snapshot.shards_written");
        *status = PublishSnapshot(*files, manifest, name, life);
        BALLAST_FAILPOINT("snapshot.published");
        if (!status->ok()) return;
        // The snapshot is whole; what cannot be removed now is tried again.
        PruneSnapshots(*files, manifest.job, keep, manifest.step, life)
            .IgnoreError();
      },
      [this, status, size_bytes, id = active_->id] {
        Conclude(id, *status, size_bytes);
        RunIdle();
      });
}

void JobSnapshots::ConcludeLater(const absl::Status& why) {
  parts_.executor->Post(
      [this, why, id = active_->id, alive = std::weak_ptr<int>(alive_)] {
        if (alive.expired() || !active_.has_value() || active_->id != id)
          return;
        ConcludeFailed(
            num_nodes() == 1
                ? why
                : absl::Status(
                      why.code(),
                      absl::StrCat("node 0: ", std::string(why.message()))));
      });
}

// A life that has claimed the directory removes what this one is writing: that
// its files are gone is not the reason to tell.
void JobSnapshots::ConcludeFailed(const absl::Status& why) {
  if (active_->is_replica || !has_claimed_) return Conclude(active_->id, why);
  auto status = std::make_shared<absl::Status>();
  io_.Run([files = parts_.files, job = parts_.job.job, life = parts_.life,
           status] { *status = CheckLife(*files, job, life); },
          [this, why, status, id = active_->id] {
            Conclude(id, IsOtherLife(*status) ? *status : why);
            RunIdle();
          });
}

void JobSnapshots::Conclude(const std::string& id, const absl::Status& status,
                            uint64_t size_bytes) {
  if (!active_.has_value() || active_->id != id) return;
  ReleaseSteps();
  v1::SnapshotFrame frame;
  frame.set_id(active_->id);
  v1::SnapshotOutcome& outcome = *frame.mutable_outcome();
  FillOutcome(status, &outcome);
  outcome.set_superseded(IsOtherLife(status));
  outcome.set_path(absl::StrCat(parts_.job.job, "/", active_->name));
  outcome.set_version(active_->version.value());
  outcome.set_size_bytes(size_bytes);
  for (int n = 1; n < num_nodes(); ++n) {
    parts_.port->SendSnapshot(NodeRank(n), frame);
  }
  Remember(frame);
  OnOutcome(frame);
}

}  // namespace ballast::snapshot
