// Every node writes, and collects what it holds: JobSnapshots.
#include <sys/mman.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/snapshot_outcome.h"

namespace ballast::snapshot {

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
    FillOutcome(active_->failure, frame.mutable_outcome());
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

// The file of this node is whole, or it is given up.
void JobSnapshots::EndActive(const absl::StatusOr<Saved>& saved) {
  if (active_->is_replica) return EndReplica(saved);
  status_.last_duration = parts_.clock->Now() - active_->since;
  if (saved.ok()) {
    ++status_.saved;
    status_.last = *saved;
    status_.last_error = absl::OkStatus();
    status_.other_life.clear();
  } else {
    ++(active_->is_superseded ? status_.superseded : status_.failed);
    status_.last_error = saved.status();
    if (active_->is_superseded) {
      status_.other_life = std::string(saved.status().message());
    }
  }
  const std::string id = active_->id;
  // Node 0 may have removed them before this node wrote its own; where only the
  // links are gone, it may be publishing them.
  const bool removes = is_coordinator() || active_->is_concluded;
  ReleaseSteps();
  active_.reset();
  if (writer_ != nullptr) writer_->Cancel();
  if (!saved.ok() && removes && parts_.files != nullptr) {
    io_.Run(
        [files = parts_.files, path = TemporaryPath(parts_.job.job, id)] {
          files->RemoveAll(path).IgnoreError();  // tried again with the next
        },
        [this] { RunIdle(); });
  }
  parts_.port->OnSnapshot(saved);
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

}  // namespace ballast::snapshot
