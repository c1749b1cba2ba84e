// A replica that several nodes hold, into the memory of one of them: what this
// node lacks it fetches from the others, no more of each file than it needs,
// and one file at a time; everything is checked before it counts (I17, I27).
//
//   manifest ─▶ header of each shard ─▶ for each shard: fetch, read, forget
//
// Memory: the headers, and of one stored shard what this node wants of it.
//
// Threading: control thread only; files are read in the io pool. `done` is
// never called from inside a call.
// Ownership: borrows its parts. Destroyed only when it is idle, or when the
// pool runs nothing any more.
#ifndef SERVER_SNAPSHOT_REPLICA_LOAD_H_
#define SERVER_SNAPSHOT_REPLICA_LOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/compute_pool.h"
#include "server/base/ids.h"
#include "server/layout/layout.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/held_sets.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/loader.h"
#include "server/snapshot/shard_courier.h"

namespace ballast::snapshot {

class ReplicaLoad {
 public:
  struct Parts {
    std::string job;
    NodeRank node;
    JobIdentity identity;
    LoadTarget target;
    HeldFiles* held = nullptr;  // what this node holds; null: nothing
    base::ComputePool* io = nullptr;
    ShardCourier* courier = nullptr;  // null: one node
    std::function<void()> on_idle;    // after Cancel
  };

  struct Outcome {
    absl::StatusOr<LoadedState> loaded;
    // If it failed because of a copy: which one.
    std::optional<BadCopy> bad;
  };
  using Done = absl::AnyInvocable<void(Outcome) &&>;

  explicit ReplicaLoad(const Parts& parts);
  ~ReplicaLoad();

  // `choice` has a holder of each file. One at a time; the target's memory
  // holds anything after a failure, and is read anew by the next Start.
  void Start(HeldChoice choice, Done done);
  // `done` is not called any more; WhenIdle says when nothing is touched.
  void Cancel();
  bool is_idle() const { return io_.is_idle() && !is_fetching_; }

 private:
  struct Attempt;

  // Of the attempt: the file, and who holds it for this node.
  std::string PathOf(int shard) const;
  NodeRank HolderOf(int shard) const;
  bool IsHere(int shard) const { return HolderOf(shard) == parts_.node; }

  void Do(absl::AnyInvocable<absl::Status(Attempt&) &&> work, int shard,
          void (ReplicaLoad::*next)());
  void Fetch(int shard, std::span<const StateLoad::Range> ranges,
             void (ReplicaLoad::*next)());
  void FetchNext();
  void FetchRange();
  void OnStale();
  void BringManifest();
  void ReadManifestFile();
  void BringHeader();
  void BringRestOfHeader();
  void CheckHeader();
  void OpenState();
  void BringShard();
  void ReadShardFile();
  void End(absl::StatusOr<LoadedState> loaded, std::optional<int> bad_shard);

  const Parts parts_;
  IoQueue io_;
  bool is_fetching_ = false;
  std::shared_ptr<Attempt> attempt_;  // shared with work of the io pool
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_REPLICA_LOAD_H_
