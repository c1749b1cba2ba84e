// The replicas of one job on one node: sets of files in memory, each of one
// version and of all that a snapshot is made of but for the shards of other
// nodes. A node holds its own shard and its source's (layout/replica_holder.h).
//
//   JOB/.tmp-ID/         being made: the own shard is written here, the
//   manifest
//                        and the source's shard are fetched and checked
//   JOB/step-00000123/   held
//
// Before a set is held by all nodes the one before it stays: there is always
// one that is whole. Then Keep removes what is older.
//
// Threading: control thread only; files are touched in the io pool. `done` is
// never called from inside a call.
// Ownership: borrows its parts. Destroyed only when it is idle, or when the
// pool runs nothing any more.
#ifndef SERVER_SNAPSHOT_JOB_REPLICAS_H_
#define SERVER_SNAPSHOT_JOB_REPLICAS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/layout/layout.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/shard_courier.h"
#include "server/snapshot/shard_plan.h"
#include "server/transport/pulls.h"

namespace ballast::snapshot {

// The same on all nodes, but for the rate.
struct ReplicaSchedule {
  int64_t every_steps = 0;            // 0: there are none
  uint64_t max_bytes_per_second = 0;  // that a node fetches; 0: no bound
};

// What the sets of one node take at most: two of them.
uint64_t HeldBytes(const layout::Layout& layout, NodeRank node,
                   const ShardContent& content);

class JobReplicas {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  struct ManifestFile {
    uint64_t size_bytes = 0;
    uint64_t checksum = 0;
  };

  struct Parts {
    std::string job;
    layout::Topology topology;
    NodeRank node;
    HeldFiles* files = nullptr;
    base::ComputePool* io = nullptr;
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    uint64_t max_bytes_per_second = 0;
    std::function<bool()> is_busy;  // ShardCourier
    std::function<void()> on_idle;
  };

  explicit JobReplicas(Parts parts);

  HeldFiles* files() const { return parts_.files; }
  const ShardCourier& courier() const { return courier_; }
  void SetPulls(transport::Pulls* pulls) { courier_.SetPulls(pulls); }

  // ---- One set; one at a time. ----

  // `id` as in TemporaryPath, where this node's shard is going to be written.
  void Begin(const std::string& id, int64_t version);
  // Node 0: the manifest, once all shards are there.
  void WriteManifest(
      const Manifest& manifest,
      absl::AnyInvocable<void(absl::StatusOr<ManifestFile>) &&> done);
  // This node's shard and what it fetches are checked, and the set is held.
  // `own`: the file that this node has written.
  void Collect(const ManifestFile& manifest, const FileInfo& own, Done done);
  // It is held by all: older ones go.
  void Keep();
  // It will not be whole.
  void Drop();
  // Between two sets: only this one stays, whether or not it is held.
  void KeepOnly(int64_t version);
  bool Holds(int64_t version) const;
  // Nobody knows any more: what is held stays, what was on its way goes.
  void Abandon();
  // There will be no further set: their memory is not kept any more.
  void Close();

  bool is_idle() const { return io_.is_idle() && !courier_.is_fetching(); }

 private:
  struct Making {
    std::string id;
    int64_t version = 0;
    ManifestFile manifest_file;
    FileInfo own;
    Manifest manifest;
    Done done;
  };

  std::string Directory() const;  // of the one that is being made
  std::string HeldPath(int64_t version) const;
  std::shared_ptr<HeldFile> Find(int64_t version, int shard) const;
  void FetchManifest();
  void ReadCopiedManifest();
  absl::Status CheckManifest() const;
  void FetchShard();
  void CheckAndPlace();
  void End(const absl::Status& status);
  void Run(absl::AnyInvocable<absl::Status() &&> work, Done done);
  void Remove(std::string path);

  const Parts parts_;
  IoQueue io_;
  ShardCourier courier_;
  std::optional<Making> making_;
  // Shared with work that may outlast the set it is for.
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_JOB_REPLICAS_H_
