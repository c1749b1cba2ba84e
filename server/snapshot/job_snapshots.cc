#include "server/snapshot/job_snapshots.h"

#include <sys/mman.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {
namespace {

constexpr absl::Duration kRepeatEvery = absl::Milliseconds(500);
// How long steps are held for a node that does not answer.
constexpr absl::Duration kArmLimit = absl::Seconds(10);
constexpr size_t kMaxWishes = 16;
constexpr size_t kMaxOutcomes = 32;
constexpr size_t kMaxTextBytes = 1000;

bool IsId(const std::string& id) {
  uint64_t value;
  return FromHex16(id, &value);
}

absl::Status ToStatus(const v1::SnapshotOutcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code()),
                      outcome.text().substr(0, kMaxTextBytes));
}

void Fill(const absl::Status& status, v1::SnapshotOutcome* outcome) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_text(std::string(status.message()).substr(0, kMaxTextBytes));
}

}  // namespace

JobSnapshots::JobSnapshots(const Parts& parts)
    : parts_(parts),
      plan_(*parts.layout, parts.node,
            {parts.state->num_moments(), parts.has_published,
             parts.residuals != nullptr}),
      capture_(&plan_, parts.state, parts.weights, parts.residuals),
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

void JobSnapshots::OnStarted(WeightVersion version) {
  is_started_ = true;
  finished_ = committed_ = version;
  status_.replicas.last_step = version.value();
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

// ---- Node 0 decides. ----

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
  // What an earlier writer left goes first: it may be what fills the disk.
  if (!wish.is_replica) {
    io_.Run(
        [files = parts_.files, job = parts_.job.job, id = wish.id] {
          RemoveTemporary(*files, job, id).IgnoreError();  // tried again later
        },
        [this] { RunIdle(); });
  }
  Arm(std::move(active));
  for (int n = 1; n < num_nodes(); ++n) SendOrder(NodeRank(n));
  OnArmed(parts_.node);
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
  Fill(refusal, frame.mutable_outcome());
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
  Conclude(active_->id,
           absl::Status(why.code(), absl::StrCat("node ", from.value(), ": ",
                                                 std::string(why.message()))));
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
       name = active_->name, keep = parts_.schedule.keep, status] {
        BALLAST_FAILPOINT("snapshot.shards_written");
        *status = PublishSnapshot(*files, manifest, name);
        BALLAST_FAILPOINT("snapshot.published");
        if (!status->ok()) return;
        // The snapshot is whole; what cannot be removed now is tried again.
        PruneSnapshots(*files, manifest.job, keep).IgnoreError();
      },
      [this, status, size_bytes, id = active_->id] {
        Conclude(id, *status, size_bytes);
        RunIdle();
      });
}

// ---- A replica is collected. ----

void JobSnapshots::PublishReplica(const Manifest& manifest) {
  replicas_->WriteManifest(
      manifest,
      [this, id = active_->id](absl::StatusOr<JobReplicas::ManifestFile> file) {
        if (!active_.has_value() || active_->id != id) return RunIdle();
        if (!file.ok()) return Conclude(id, file.status());
        active_->collect = *file;
        for (int n = 1; n < num_nodes(); ++n) SendCollect(NodeRank(n));
        Collect();
      });
}

void JobSnapshots::SendCollect(NodeRank to) {
  v1::SnapshotFrame frame;
  frame.mutable_collect()->set_manifest_bytes(active_->collect->size_bytes);
  frame.mutable_collect()->set_manifest_checksum(active_->collect->checksum);
  Send(to, active_->id, std::move(frame));
}

void JobSnapshots::Collect() {
  replicas_->Collect(*active_->collect, *active_->shard,
                     [this](const absl::Status& status) {
                       OnCollected(status);
                       RunIdle();
                     });
}

// Of the active one.
void JobSnapshots::OnCollected(const absl::Status& status) {
  active_->is_held = status.ok();
  active_->failure = status;
  if (!is_coordinator()) return TellCoordinator();
  if (status.ok()) return OnHeld(parts_.node);
  ConcludeLater(status);
}

void JobSnapshots::OnHeld(NodeRank from) {
  if (!active_->is_replica || !active_->collect.has_value()) return;
  active_->held[from.value()] = true;
  const auto& held = active_->held;
  if (std::find(held.begin(), held.end(), false) != held.end()) return;
  uint64_t size_bytes = 0;
  for (const auto& shard : active_->shards) size_bytes += shard->size_bytes;
  Conclude(active_->id, absl::OkStatus(), size_bytes);
}

void JobSnapshots::ConcludeLater(const absl::Status& why) {
  parts_.executor->Post([this, why, id = active_->id,
                         alive = std::weak_ptr<int>(alive_)] {
    if (alive.expired()) return;
    Conclude(id, num_nodes() == 1
                     ? why
                     : absl::Status(why.code(),
                                    absl::StrCat("node 0: ",
                                                 std::string(why.message()))));
  });
}

void JobSnapshots::SetPulls(transport::Pulls* pulls) {
  is_linked_ = pulls != nullptr;
  if (replicas_ != nullptr) replicas_->SetPulls(pulls);
}

void JobSnapshots::Conclude(const std::string& id, const absl::Status& status,
                            uint64_t size_bytes) {
  if (!active_.has_value() || active_->id != id) return;
  ReleaseSteps();
  v1::SnapshotFrame frame;
  frame.set_id(active_->id);
  v1::SnapshotOutcome& outcome = *frame.mutable_outcome();
  Fill(status, &outcome);
  outcome.set_path(absl::StrCat(parts_.job.job, "/", active_->name));
  outcome.set_version(active_->version.value());
  outcome.set_size_bytes(size_bytes);
  for (int n = 1; n < num_nodes(); ++n) {
    parts_.port->SendSnapshot(NodeRank(n), frame);
  }
  Remember(frame);
  OnOutcome(frame);
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

// ---- Every node writes. ----

void JobSnapshots::OnOrder(const std::string& id,
                           const v1::SnapshotOrder& order) {
  if (is_stopped_) return;
  v1::SnapshotFrame armed;
  armed.mutable_armed();
  if (active_.has_value() && active_->id == id) {
    return Send(NodeRank(0), id, std::move(armed));
  }
  if (Outcome(id) != nullptr) return;  // a late repetition
  const WeightVersion version(order.version());
  if (!CheckSnapshotName(order.name()).ok() || version < committed_) return;
  // Node 0 has given the last one up: it orders one after the other.
  if (active_.has_value()) {
    // What this node holds is kept if word of its being whole was lost.
    if (active_->is_held && active_->version.value() == order.whole()) {
      EndActive(Saved{active_->name, order.whole(), 0});
    } else {
      EndActive(absl::AbortedError("node 0 has begun another snapshot"));
    }
  }
  if (writer_ != nullptr) return;  // soon: the order is repeated
  if (order.replica() && replicas_ != nullptr) {
    // One more than there is room for, if word of the last one was lost.
    const bool has_whole = replicas_->Holds(order.whole());
    if (has_whole) status_.replicas.last_step = order.whole();
    replicas_->KeepOnly(status_.replicas.last_step);
  }
  Active active;
  active.id = id;
  active.name = order.name();
  active.is_replica = order.replica();
  active.is_last = order.last();
  active.version = version;
  active.since = parts_.clock->Now();
  if (order.last()) active.failure = CheckLast();
  if (order.replica() ? replicas_ == nullptr : parts_.files == nullptr) {
    active.failure = absl::FailedPreconditionError(
        order.replica() ? "this daemon holds no replicas: set its "
                          "replicas.every_steps"
                        : "this daemon keeps no snapshots: set its "
                          "snapshots.directory");
  }
  Arm(std::move(active));
  if (!active_->failure.ok()) return TellCoordinator();
  Send(NodeRank(0), id, std::move(armed));
}

void JobSnapshots::Arm(Active active) {
  active_ = std::move(active);
  ArmRepeat();
  BeginIfReady();
}

void JobSnapshots::BeginIfReady() {
  if (!active_.has_value() || active_->is_begun || writer_ != nullptr ||
      !active_->failure.ok() || finished_ != active_->version || is_stopped_) {
    return;
  }
  if (committed_ != finished_) {
    return OnWritten(absl::InternalError(
        "a later step was committed before this node knew of the snapshot"));
  }
  Begin();
}

absl::Status JobSnapshots::MakeImage() {
  if (image_ != nullptr || plan_.image_bytes() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      image_, parts_.device->AllocatePrivate(plan_.image_bytes(), "snapshot"));
  return absl::OkStatus();
}

// So that no step waits for the first snapshot's pages. Whatever fails fails
// then, with a snapshot to say it of.
void JobSnapshots::TakeMemory() {
  if (!MakeImage().ok() || image_ == nullptr) return;
  memory_.Run(
      [image = image_->bytes()] {
        // Changes no byte, so that copies may come meanwhile.
        std::ignore = madvise(image.data(), image.size(), MADV_POPULATE_WRITE);
      },
      [this] { RunIdle(); });
}

void JobSnapshots::Begin() {
  active_->is_begun = true;
  if (absl::Status made = MakeImage(); !made.ok()) return OnWritten(made);
  if (active_->is_replica) {
    replicas_->Begin(active_->id, active_->version.value());
  }
  const optimizer::Scalars& scalars = parts_.state->scalars();
  const int first = parts_.layout->topology().FirstRank(parts_.node).value();
  std::vector<Cursor> cursors(parts_.layout->topology().local_world_size);
  for (size_t l = 0; l < cursors.size(); ++l) {
    cursors[l].rank = first + static_cast<int>(l);
    if (l < scalars.cursors.size()) cursors[l].bytes = scalars.cursors[l];
  }
  Manifest& manifest = active_->manifest;
  manifest = parts_.job;
  manifest.id = active_->id;
  manifest.step = active_->version.value();
  manifest.generation = scalars.generation.value();
  manifest.optimizer_step = scalars.optimizer_step;
  // Before the first step the state has none.
  if (!scalars.groups.empty()) manifest.groups = scalars.groups;
  if (is_coordinator()) manifest.budget = parts_.port->Budget();
  std::span<std::byte> image;
  if (image_ != nullptr) image = image_->bytes();
  capture_.Begin(image, scalars.optimizer_step);
  ShardWriter::Parts writer;
  writer.files = files();
  writer.io = &io_;
  writer.clock = parts_.clock;
  writer.executor = parts_.executor;
  writer.plan = &plan_;
  writer.capture = &capture_;
  writer.image = image;
  writer.weights = parts_.weights;
  // Memory is not a disk that others wait for.
  writer.max_bytes_per_second =
      active_->is_replica ? 0 : parts_.schedule.max_bytes_per_second;
  writer_ = std::make_unique<ShardWriter>(
      writer, TemporaryPath(parts_.job.job, active_->id),
      ShardName(parts_.node.value(), num_nodes()), std::move(cursors),
      [this, id = active_->id](absl::StatusOr<FileInfo> info) {
        writer_.reset();
        if (active_.has_value() && active_->id == id) {
          OnWritten(std::move(info));
        }
        StartNext();
        RunIdle();
      });
  writer_->Start();
}

void JobSnapshots::OnWritten(absl::StatusOr<FileInfo> info) {
  active_->is_begun = true;
  if (info.ok()) {
    active_->shard = *info;
  } else {
    active_->failure = info.status();
  }
  if (!is_coordinator()) return TellCoordinator();
  if (info.ok()) return OnShard(parts_.node, *std::move(info));
  ConcludeLater(info.status());
}

void JobSnapshots::TellCoordinator() {
  v1::SnapshotFrame frame;
  if (!active_->failure.ok()) {
    Fill(active_->failure, frame.mutable_outcome());
  } else if (active_->is_held) {
    frame.mutable_held();
  } else if (active_->shard.has_value()) {
    frame.mutable_shard()->set_size_bytes(active_->shard->size_bytes);
    frame.mutable_shard()->set_header_checksum(active_->shard->header_checksum);
  } else {
    return;
  }
  Send(NodeRank(0), active_->id, std::move(frame));
}

void JobSnapshots::OnOutcome(const v1::SnapshotFrame& frame) {
  const v1::SnapshotOutcome& outcome = frame.outcome();
  const absl::Status status = ToStatus(outcome);
  absl::StatusOr<Saved> saved = Saved{outcome.path().substr(0, kMaxTextBytes),
                                      outcome.version(), outcome.size_bytes()};
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
  if (active_.has_value() && active_->id == frame.id()) EndActive(saved);
  for (SaveDone& done : waiters) {
    parts_.executor->Post([saved, done = std::move(done)]() mutable {
      std::move(done)(std::move(saved));
    });
  }
  StartNext();
  RunIdle();
}

// The file of this node is whole, or it is given up.
void JobSnapshots::EndActive(const absl::StatusOr<Saved>& saved) {
  if (active_->is_replica) return EndReplica(saved);
  status_.last_duration = parts_.clock->Now() - active_->since;
  if (saved.ok()) {
    ++status_.saved;
    status_.last = *saved;
    status_.last_error = absl::OkStatus();
  } else {
    ++status_.failed;
    status_.last_error = saved.status();
  }
  const std::string id = active_->id;
  ReleaseSteps();
  active_.reset();
  if (writer_ != nullptr) writer_->Cancel();
  if (!saved.ok() && is_coordinator() && parts_.files != nullptr) {
    io_.Run(
        [files = parts_.files, path = TemporaryPath(parts_.job.job, id)] {
          files->RemoveAll(path).IgnoreError();  // tried again with the next
        },
        [this] { RunIdle(); });
  }
  parts_.port->OnSnapshot(saved);
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

// What this node holds is part of a whole replica, or it is given up.
void JobSnapshots::EndReplica(const absl::StatusOr<Saved>& saved) {
  ReplicaStatus& status = status_.replicas;
  const bool is_failure = !saved.ok() && !absl::IsCancelled(saved.status());
  if (!absl::IsCancelled(saved.status())) status.last_error = saved.status();
  status.made += saved.ok() && active_->is_begun ? 1 : 0;
  status.failed += is_failure ? 1 : 0;
  ReleaseSteps();
  if (replicas_ == nullptr || !active_->is_begun) {
    // It was refused, or made before.
  } else if (saved.ok() && active_->is_held) {
    status.last_step = active_->version.value();
    if (active_->is_last) parts_.held->set_last_step(status.last_step);
    replicas_->Keep();
  } else if (is_stopped_ || active_->is_orphaned) {
    replicas_->Abandon();
  } else {
    replicas_->Drop();
  }
  active_.reset();
  if (writer_ != nullptr) writer_->Cancel();
  parts_.port->OnReplica(saved);
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
  replicas.held_bytes = parts_.held->bytes_in_use();
  replicas.bytes_sent = replicas_->courier().bytes_sent();
  replicas.bytes_received = replicas_->courier().bytes_received();
  return status;
}

}  // namespace ballast::snapshot
