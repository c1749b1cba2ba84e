// The snapshots of one job, seen from one node. Node 0 decides that there is
// one, of which version, and when it is whole; every node writes its file.
//
//   node 0   hold steps ─ order ─▶ all armed: steps go on
//   nodes    order ─▶ armed ─▶ version published here ─▶ copy, write ─▶ shard
//   node 0   all shards durable ─▶ manifest, rename, prune ─▶ outcome
//
// No later version is committed before every node knows of the order, so each
// finds the version whole once it is published, and keeps it (capture.h).
// A replica (job_replicas.h) is made in the same way, never at the same time,
// and in memory; there each node writes the manifest, and has to fetch:
//
//   node 0   all shards there ─▶ manifest ─ collect ─▶ all nodes
//   nodes    fetch manifest and the source's shard, check ─▶ held
//   node 0   all nodes hold theirs ─▶ outcome: older ones go
//
// Only node 0 changes anything but .tmp-ID, and before that it claims the job's
// directory for this life of the job (files/life.h). If another one has claimed
// it since, nothing more is saved until that is over.
//
// Frames may be lost: orders, shards and wishes are repeated until answered.
// A node or daemon that dies in between leaves files that no manifest names.
// Whatever fails, training goes on.
//
// Threading: control thread only; port and callbacks are never called from
// inside a call, except SendSnapshot, HoldSteps and ReleaseSteps.
// Ownership: borrows its parts. Destroyed after Stop has called back, or when
// the pool runs nothing any more.
#ifndef SERVER_SNAPSHOT_JOB_SNAPSHOTS_H_
#define SERVER_SNAPSHOT_JOB_SNAPSHOTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/optimizer/shard_state.h"
#include "server/snapshot/capture.h"
#include "server/snapshot/encoded_weights.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/job_replicas.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/shard_writer.h"
#include "server/snapshot/weight_places.h"
#include "server/transport/pulls.h"

namespace ballast::snapshot {

// The same on all nodes, but only node 0's schedule counts.
struct Schedule {
  int64_t every_steps = 0;                          // 0: not by steps
  absl::Duration every = absl::InfiniteDuration();  // since the last one
  int keep = 2;                       // of those named by their step; 0: all
  uint64_t max_bytes_per_second = 0;  // per node; 0: no bound
};

struct Saved {
  std::string path;  // below the root
  int64_t step = 0;
  uint64_t size_bytes = 0;
};
using SaveDone = absl::AnyInvocable<void(absl::StatusOr<Saved>) &&>;

// What it asks of the job.
class SnapshotPort {
 public:
  virtual ~SnapshotPort() = default;
  virtual void SendSnapshot(NodeRank to, const v1::SnapshotFrame& frame) = 0;
  // Node 0: the open step, which is not decided before ReleaseSteps.
  virtual absl::StatusOr<Step> HoldSteps() = 0;
  virtual void ReleaseSteps() = 0;
  // Node 0, at rest between two steps: what the error budget has made of
  // tensors.
  virtual std::vector<BudgetInfo> Budget() const = 0;
  // Something has ended: one line for the log.
  virtual void OnSnapshot(const absl::StatusOr<Saved>& saved) = 0;
  virtual void OnReplica(const absl::StatusOr<Saved>& saved) = 0;
  // Which workers of this node are attached, in words; empty: none.
  virtual std::string AttachedWorkers() const = 0;
};

struct ReplicaStatus {
  bool is_enabled = false;
  int64_t made = 0;  // since the job's start, as this node heard
  int64_t failed = 0;
  int64_t skipped = 0;  // were due while one, or a snapshot, was being written
  int64_t last_step = 0;    // of the newest that is whole; 0: there is none
  int64_t lag_steps = 0;    // of what is published here beyond it
  uint64_t held_bytes = 0;  // on this node
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  absl::Status last_error;  // of the last one, if it failed
};

struct SnapshotStatus {
  bool is_saving = false;
  uint64_t bytes_written = 0;  // of the one that is being written, here
  uint64_t bytes_total = 0;
  int64_t saved = 0;  // since the job's start, as this node heard
  int64_t failed = 0;
  int64_t skipped = 0;  // were due while one was being written
  // Were not taken, or given up, as another life of the job writes there.
  int64_t superseded = 0;
  std::string other_life;  // why, as long as it is so
  std::optional<Saved> last;
  absl::Duration last_duration;  // from the order to the outcome
  absl::Status last_error;       // of the last one, if it failed
  uint64_t bytes_by_updates = 0;
  ReplicaStatus replicas;
};

class JobSnapshots {
 public:
  struct Parts {
    Manifest job;  // all that stays: names, groups come from the state
    const layout::Layout* layout = nullptr;
    NodeRank node;
    bool has_published = false;    // ShardContent
    bool gathers_weights = false;  // likewise
    optimizer::ShardState* state = nullptr;
    optimizer::Residuals* residuals = nullptr;  // with error feedback
    WeightPlaces weights;
    const EncodedWeights* encoded = nullptr;  // where they may be so
    device::Device* device = nullptr;         // the image
    FileSystem* files = nullptr;  // null: no snapshots, only replicas
    LifeId life{};                // node 0: with files
    base::ComputePool* io = nullptr;
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    base::Random* random = nullptr;
    Schedule schedule;
    HeldFiles* held = nullptr;  // where replicas lie; null: there are none
    ReplicaSchedule replicas;
    std::function<bool()> is_link_busy;  // ShardCourier
    SnapshotPort* port = nullptr;
  };

  explicit JobSnapshots(const Parts& parts);
  ~JobSnapshots();

  // For the optimizer; outlives it.
  optimizer::UpdateGuard* guard() { return &capture_; }

  // ---- The job. ----
  // `replicated`: the newest version that replicas hold, 0 if there are none.
  void OnStarted(WeightVersion version, WeightVersion replicated);
  void OnCommitted(Step step);
  // All of the step is published here.
  void OnFinished(Step step);
  void OnFrame(NodeRank from, const v1::SnapshotFrame& frame);
  // The nodes have lost one another, and one of them perhaps what it knew of
  // the snapshot that is being written: it is given up, on all of them. Wishes
  // stay.
  void OnLinksLost(const absl::Status& why);

  // The links to the other nodes, by which replicas travel; null: they are
  // gone, or about to go. One that is on its way fails.
  void SetPulls(transport::Pulls* pulls);

  bool keeps_files() const { return parts_.files != nullptr; }
  // Takes a snapshot of the current version; `name` empty: named by its step.
  // InvalidArgument; FailedPrecondition: this daemon keeps none;
  // ResourceExhausted: too many are waiting.
  void Save(const std::string& name, SaveDone done);
  // A replica of the current version, for a job that ends with it.
  // FailedPrecondition: workers are attached to it, or it keeps none.
  // Unavailable, Aborted: the nodes have lost one another.
  void SaveLast(SaveDone done);

  // Runs `fn` once nothing is being saved. The job was closed: nobody will want
  // a replica that is on its way.
  void WhenIdle(absl::AnyInvocable<void() &&> fn);
  // Nothing is saved any more; `done` runs once no file and no memory of the
  // job is touched.
  void Stop(const absl::Status& why, absl::AnyInvocable<void() &&> done);

  SnapshotStatus status() const;

 private:
  static constexpr size_t kMaxWishes = 16;

  struct Wish {
    std::string id;
    std::string name;
    bool is_replica = false;
    bool is_last = false;
  };
  // One that this node writes for.
  struct Active {
    std::string id;
    std::string name;
    bool is_replica = false;
    bool is_last = false;
    WeightVersion version;
    absl::Time since;
    bool is_begun = false;
    std::optional<FileInfo> shard;  // durable here
    absl::Status failure;
    // A replica:
    std::optional<JobReplicas::ManifestFile> collect;
    bool is_held = false;
    bool is_orphaned = false;  // whether it is whole, nobody here knows
    // Node 0:
    std::vector<bool> held;   // by node, of a replica
    std::vector<bool> armed;  // by node
    std::vector<std::optional<FileInfo>> shards;
    bool holds_steps = false;
    bool is_publishing = false;
    bool is_concluded = false;   // node 0 has said how it ended
    bool is_superseded = false;  // likewise: by another life
    std::vector<std::string> cursors;
    Manifest manifest;
  };

  FileSystem* files() const {  // of the active one
    return active_->is_replica ? replicas_->files() : parts_.files;
  }
  std::unique_ptr<JobReplicas> MakeReplicas();
  bool is_coordinator() const { return parts_.node == NodeRank(0); }
  int num_nodes() const { return parts_.layout->topology().num_nodes; }
  absl::Status CheckLast() const;
  void Ask(Wish wish, SaveDone done);
  void AddWish(Wish wish);
  void StartNext();
  void AskForDue(Step step);
  bool IsSnapshotDue(Step step);
  void Claim(const Active& active);
  void LookForOtherLife();
  void OnWish(NodeRank from, const std::string& id, const v1::SnapshotWish&);
  void OnOrder(const std::string& id, const v1::SnapshotOrder& order);
  void OnArmed(NodeRank from);
  void OnShard(NodeRank from, FileInfo info);
  void OnNodeFailed(NodeRank from, const v1::SnapshotOutcome& outcome);
  void Arm(Active active);
  void BeginIfReady();
  absl::Status MakeImage();
  void TakeMemory();
  void Begin();
  void OnWritten(absl::StatusOr<FileInfo> info);
  void TellCoordinator();
  void Publish();
  void PublishReplica(const Manifest& manifest);
  void Collect();
  void OnCollected(const absl::Status& status);
  void OnHeld(NodeRank from);
  void OnCollect(const v1::SnapshotFrame& frame);
  void SendCollect(NodeRank to);
  // Node 0, not from inside a call of the job.
  void ConcludeLater(const absl::Status& why);
  // The same, once it is known whether another life is the reason.
  void ConcludeFailed(const absl::Status& why);
  // Node 0: the end of the active one, if it is still this, for all.
  void Conclude(const std::string& id, const absl::Status& status,
                uint64_t size_bytes = 0);
  void OnOutcome(const v1::SnapshotFrame& frame);
  void EndActive(const absl::StatusOr<Saved>& saved);
  void EndReplica(const absl::StatusOr<Saved>& saved);
  void ForgetLast(const absl::Status& why);
  void ReleaseSteps();
  void Send(NodeRank to, const std::string& id, v1::SnapshotFrame frame);
  void SendOrder(NodeRank to);
  void Remember(v1::SnapshotFrame outcome);
  const v1::SnapshotFrame* Outcome(const std::string& id) const;
  void ArmRepeat();
  void Repeat();
  void RunIdle();

  const Parts parts_;
  const ShardPlan plan_;
  Capture capture_;
  IoQueue io_;
  IoQueue memory_;  // beside files, so that no snapshot waits for it
  const std::unique_ptr<JobReplicas> replicas_;  // null: there are none
  std::unique_ptr<device::PrivateBuffer> image_;
  WeightVersion finished_{-1};
  WeightVersion committed_{-1};
  bool is_started_ = false;
  std::deque<Wish> wishes_;  // node 0: to be ordered
  std::map<std::string, std::vector<SaveDone>> waiting_;  // by id
  std::vector<Wish> asked_;            // other nodes: of node 0
  std::vector<std::string> last_ids_;  // of SaveLast, asked for here
  bool is_linked_ = false;             // SetPulls
  std::optional<Active> active_;
  std::unique_ptr<ShardWriter> writer_;
  std::deque<v1::SnapshotFrame> outcomes_;  // node 0: of the last ones
  absl::Time last_due_;
  bool has_claimed_ = false;  // node 0: the directory
  base::TimerId repeat_ = 0;
  SnapshotStatus status_;
  bool is_stopped_ = false;
  std::vector<absl::AnyInvocable<void() &&>> when_idle_;
  absl::AnyInvocable<void() &&> stopped_;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_JOB_SNAPSHOTS_H_
