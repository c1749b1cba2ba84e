// What a job that is opened goes on from, on one node: says what this node
// holds, hears what was chosen (resume_council.h, on node 0), reads it, and
// goes when all nodes have.
//
//   Start ─▶ look at what is held ─ offer ─▶ node 0
//   choice ─▶ replica, files or nothing is read ─ offer: loaded ─▶ node 0
//   choice says go ─▶ done
//
// Frames may be lost: offers are repeated until the choice says go, and node 0
// answers each of them, after that too.
//
// Threading: control thread only. `done` is never called from inside a call.
// Ownership: borrows its parts. Destroyed only when it is idle, or when the
// pool runs nothing any more.
#ifndef SERVER_DAEMON_JOB_RESUME_H_
#define SERVER_DAEMON_JOB_RESUME_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/daemon/job_loading.h"
#include "server/daemon/resume_council.h"
#include "server/session/job_spec.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/held_sets.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/loader.h"
#include "server/snapshot/replica_load.h"
#include "server/snapshot/shard_courier.h"
#include "server/transport/pulls.h"

namespace ballast::daemon {

class JobResume {
 public:
  struct Parts {
    ResumeCouncil::Options options;
    NodeRank node;
    std::optional<session::StoredJob> stored;
    snapshot::HeldFiles* held = nullptr;  // of an earlier life; null: nothing
    snapshot::JobIdentity identity;
    snapshot::LoadTarget target;
    snapshot::FileSystem* files = nullptr;  // where `stored` is
    base::ComputePool* io = nullptr;
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    std::function<void(NodeRank to, const v1::ResumeFrame& frame)> send;
    std::function<void(const std::string&)> warn;  // null: nowhere
    std::function<void()> on_idle;
  };

  struct Result {
    // nullopt: there was nothing, initial values are taken.
    std::optional<snapshot::LoadedState> loaded;
    // "replica of step 120 held by nodes 0 and 2", "snapshot job/best".
    std::string source;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<Result>) &&>;

  explicit JobResume(Parts parts);
  ~JobResume();

  // `pulls`: null with one node. `has_initial_values`: of rank 0, on node 0.
  void Start(transport::Pulls* pulls, bool has_initial_values, Done done);
  void OnFrame(NodeRank from, const v1::ResumeFrame& frame);
  // The operator's word, on node 0 (ResumeCouncil). FailedPrecondition: it is
  // not waited for here.
  absl::Status Adopt();
  // Nothing is called or pulled any more.
  void Cancel();

  bool is_running() const { return done_ != nullptr; }
  bool is_idle() const;
  std::string WaitingFor() const;

 private:
  bool is_coordinator() const { return parts_.node == NodeRank(0); }
  int num_nodes() const { return parts_.options.num_nodes; }
  snapshot::ShardCourier::Parts CourierParts();
  std::shared_ptr<snapshot::HeldFile> Find(int64_t version, int shard) const;
  void Offer();
  void TellChoice();
  void TellBlocked(NodeRank to);
  void OfferLater();
  void TakeChoice(const v1::ResumeChoice& choice);
  void Carry();
  void CarryReplica();
  void OnLoaded(int round, absl::StatusOr<snapshot::LoadedState> loaded,
                std::optional<snapshot::BadCopy> bad);
  void End(absl::StatusOr<Result> result);
  void Post(absl::AnyInvocable<void() &&> fn);

  const Parts parts_;
  snapshot::IoQueue io_;
  JobLoading loading_;
  snapshot::ShardCourier courier_;
  snapshot::ReplicaLoad replica_load_;
  std::unique_ptr<ResumeCouncil> council_;  // node 0's, from Start on
  std::vector<snapshot::HeldSet> sets_;
  bool is_offering_ = false;
  v1::ResumeOffer offer_;
  v1::ResumeChoice choice_;  // that is carried out here
  v1::ResumeChoice told_;    // node 0: to all others
  std::string blocked_;      // what node 0 waits for, as it says
  Result result_;
  Done done_;
  base::TimerId timer_ = 0;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_RESUME_H_
