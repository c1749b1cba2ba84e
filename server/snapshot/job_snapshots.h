// The snapshots of one job, seen from one node. Node 0 decides that there is
// one, of which version, and when it is whole; every node writes its file.
//
//   node 0   hold steps ─ order ─▶ all armed: steps go on
//   nodes    order ─▶ armed ─▶ version published here ─▶ copy, write ─▶ shard
//   node 0   all shards durable ─▶ manifest, rename, prune ─▶ outcome
//
// No later version is committed before every node knows of the order, so each
// finds the version whole once it is published, and keeps it (capture.h).
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

#include <cstdint>
#include <deque>
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
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/shard_writer.h"

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
};

struct SnapshotStatus {
  bool is_saving = false;
  uint64_t bytes_written = 0;  // of the one that is being written, here
  uint64_t bytes_total = 0;
  int64_t saved = 0;  // since the job's start, as this node heard
  int64_t failed = 0;
  int64_t skipped = 0;  // were due while one was being written
  std::optional<Saved> last;
  absl::Duration last_duration;  // from the order to the outcome
  absl::Status last_error;       // of the last one, if it failed
  uint64_t bytes_by_updates = 0;
};

class JobSnapshots {
 public:
  struct Parts {
    Manifest job;  // all that stays: names, groups come from the state
    const layout::Layout* layout = nullptr;
    NodeRank node;
    bool has_published = false;  // ShardContent
    optimizer::ShardState* state = nullptr;
    optimizer::Residuals* residuals = nullptr;  // with error feedback
    std::span<const std::byte> weights;
    device::Device* device = nullptr;  // the image
    FileSystem* files = nullptr;
    base::ComputePool* io = nullptr;
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    base::Random* random = nullptr;
    Schedule schedule;
    SnapshotPort* port = nullptr;
  };

  explicit JobSnapshots(const Parts& parts);
  ~JobSnapshots();

  // For the optimizer; outlives it.
  optimizer::UpdateGuard* guard() { return &capture_; }

  // ---- The job. ----
  void OnStarted(WeightVersion version);
  void OnCommitted(Step step);
  // All of the step is published here.
  void OnFinished(Step step);
  void OnFrame(NodeRank from, const v1::SnapshotFrame& frame);
  // The nodes have lost one another, and one of them perhaps what it knew of
  // the snapshot that is being written: it is given up, on all of them. Wishes
  // stay.
  void OnLinksLost(const absl::Status& why);

  // Takes a snapshot of the current version; `name` empty: named by its step.
  // InvalidArgument; ResourceExhausted: too many are waiting.
  void Save(const std::string& name, SaveDone done);

  // Runs `fn` once nothing is being saved.
  void WhenIdle(absl::AnyInvocable<void() &&> fn);
  // Nothing is saved any more; `done` runs once no file and no memory of the
  // job is touched.
  void Stop(const absl::Status& why, absl::AnyInvocable<void() &&> done);

  SnapshotStatus status() const;

 private:
  struct Wish {
    std::string id;
    std::string name;
  };
  // One that this node writes for.
  struct Active {
    std::string id;
    std::string name;
    WeightVersion version;
    absl::Time since;
    bool is_begun = false;
    std::optional<FileInfo> shard;  // durable here
    absl::Status failure;
    // Node 0:
    std::vector<bool> armed;  // by node
    std::vector<std::optional<FileInfo>> shards;
    bool holds_steps = false;
    bool is_publishing = false;
    std::vector<std::string> cursors;
    Manifest manifest;
  };

  bool is_coordinator() const { return parts_.node == NodeRank(0); }
  int num_nodes() const { return parts_.layout->topology().num_nodes; }
  void AddWish(Wish wish);
  void StartNext();
  void AskForDue(Step step);
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
  // Node 0: the end of the active one, if it is still this, for all.
  void Conclude(const std::string& id, const absl::Status& status,
                uint64_t size_bytes = 0);
  void OnOutcome(const v1::SnapshotFrame& frame);
  void EndActive(const absl::StatusOr<Saved>& saved);
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
  std::unique_ptr<device::PrivateBuffer> image_;
  WeightVersion finished_{-1};
  WeightVersion committed_{-1};
  bool is_started_ = false;
  std::deque<Wish> wishes_;  // node 0: to be ordered
  std::map<std::string, std::vector<SaveDone>> waiting_;  // by id
  std::vector<Wish> asked_;  // other nodes: of node 0
  std::optional<Active> active_;
  std::unique_ptr<ShardWriter> writer_;
  std::deque<v1::SnapshotFrame> outcomes_;  // node 0: of the last ones
  absl::Time last_due_;
  base::TimerId repeat_ = 0;
  SnapshotStatus status_;
  bool is_stopped_ = false;
  std::vector<absl::AnyInvocable<void() &&>> when_idle_;
  absl::AnyInvocable<void() &&> stopped_;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_JOB_SNAPSHOTS_H_
