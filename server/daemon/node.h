// One daemon's jobs, given its leaves: everything that is the same in the real
// daemon and in a simulated one. It makes a JobRuntime for each job that the
// sessions start.
//
//   Sessions --StartJob/EndJob--> Node --owns--> JobRuntime (one per job)
//                                                   |__ links of the job
//
// Threading: control thread only.
// Ownership: keeps Sessions and runtimes; borrows the leaves, which outlive it.
// Destroying a node is a crash of the daemon: nobody is told anything.
#ifndef SERVER_DAEMON_NODE_H_
#define SERVER_DAEMON_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/kernels.h"
#include "proto/admin.pb.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/random.h"
#include "server/base/vault.h"
#include "server/collective/parts.h"
#include "server/daemon/job_keep.h"
#include "server/daemon/job_routes.h"
#include "server/daemon/job_runtime.h"
#include "server/daemon/peer_plane.h"
#include "server/daemon/remnants.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/metrics/metrics.h"
#include "server/session/sessions.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/job_replicas.h"
#include "server/snapshot/job_snapshots.h"

namespace ballast::daemon {

struct Leaves {
  const base::Clock* clock = nullptr;
  base::Executor* executor = nullptr;
  base::ComputePool* pool = nullptr;
  device::Device* device = nullptr;
  base::Random* random = nullptr;
  const kernels::Kernels* kernels = nullptr;
  metrics::Metrics* metrics = nullptr;  // null: none
  PeerPlane* peers = nullptr;           // null: jobs of one node only
  std::function<void(const std::string&)> warn = nullptr;  // null: nowhere
  // Null: no snapshots are kept. `io` runs what touches files, also replicas'.
  snapshot::FileSystem* snapshot_files = nullptr;
  base::ComputePool* io = nullptr;
};

// Where jobs are left for the next daemon, and what the last one left there.
struct Keeping {
  base::Vault* vault = nullptr;
  std::vector<base::Kept> found;
  // Makes the connection of a worker that was left known to the sessions; its
  // key.
  std::function<absl::StatusOr<std::string>(base::Kept worker)> adopt_worker;
  std::set<std::string> drops;  // jobs that are given up
};

struct NodeOptions {
  session::Options sessions;  // allow_many_nodes is set from the leaves
  int buckets_in_flight = 8;
  int64_t batch_bytes = collective::Parts().batch_bytes;
  absl::Duration peer_timeout = absl::Seconds(30);
  absl::Duration relink_timeout = absl::Minutes(5);
  Algorithms algorithms;
  snapshot::Schedule snapshots;
  snapshot::ReplicaSchedule replicas;
};

class Node final : public session::JobHost, public JobRuntimeHost {
 public:
  Node(const Leaves& leaves, const NodeOptions& options);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Once, before anyone comes: goes on with the jobs that were left, and keeps
  // its own. A job that is damaged ends, with a reason in the log and for its
  // workers. An error: others stay in the vault, as this daemon's limits or
  // formats are not enough for them, and it must not go on: it says why.
  // Without this call all end with this daemon.
  absl::Status TakeOver(Keeping keeping);
  // The vault does not take what was put under the name, of any job; OK: now it
  // has.
  void OnRefusal(const std::string& name, const absl::Status& why);
  // The daemon ends and another one will go on: ends the jobs that are not
  // kept, and says whether all of these are gone.
  void EndUnkept(const absl::Status& why);
  bool has_unkept() const;

  // Where workers' connections and calls go.
  session::Sessions& sessions() { return *sessions_; }

  // For `status`, `jobs`, `job NAME`.
  std::vector<v1::JobSummary> Jobs() const;
  absl::StatusOr<v1::GetJobReply> GetJob(const std::string& name) const;

  // NotFound; FailedPrecondition where no snapshots are kept.
  // JobRuntime::Adopt. NotFound names the job.
  absl::Status AdoptJob(const std::string& name);
  void SaveSnapshot(const std::string& job, const std::string& name,
                    snapshot::SaveDone done);

  // No job is left: it is safe to end.
  bool is_empty() const { return runtimes_.empty(); }
  // Null if there is no such job (any more). For checks in simulation.
  const JobRuntime* Find(const std::string& name) const;
  const Remnants& remnants() const { return remnants_; }

  // session::JobHost
  session::JobMemory MemoryOf(const session::AttachRequest& request) override;
  void ReleaseMemory(const std::string& job) override;
  absl::StatusOr<session::JobObserver*> StartJob(
      session::LocalJob* job) override;
  void EndJob(session::LocalJob* job, const absl::Status& why,
              absl::AnyInvocable<void() &&> done) override;
  void FindStored(const session::AttachRequest& request, uint32_t uid,
                  session::StoredDone done) override;
  uint64_t WindowBytes(const session::JobSpec& job,
                       const layout::Layout& layout,
                       NodeRank node) const override;
  void SaveLast(session::LocalJob* job,
                absl::AnyInvocable<void(absl::Status) &&> done) override;
  void SaveHeld(
      session::LocalJob* job,
      absl::AnyInvocable<void(absl::StatusOr<std::string>) &&> done) override;
  uint64_t held_bytes() const override { return remnants_.bytes(); }
  // JobRuntimeHost
  void FailJob(session::LocalJob* job, const absl::Status& why) override;
  void OnWentOn(session::LocalJob* job) override;
  void OnReplicaMade(const session::LocalJob& job) override;

 private:
  absl::Status TakeOverJob(const std::string& name,
                           std::vector<base::Kept> found);
  absl::Status MakeRecord(const session::LocalJob& job, snapshot::LifeId life,
                          JobKeep* keep) const;
  bool IsKept(const session::LocalJob& job) const;
  static Remnants::Owner OwnerOf(const session::LocalJob& job);
  absl::Duration HoldOf(const session::LocalJob& job) const;
  void LeaveRemnant(const session::LocalJob& job, JobRuntime* runtime,
                    bool is_closed);
  void Warn(const std::string& line) const;
  v1::JobSummary Summarize(const session::LocalJob& job) const;

  const Leaves leaves_;
  const NodeOptions options_;
  Keeping keeping_;  // no vault: nothing is kept
  bool is_taking_over_ = false;
  // By job; of those that are kept. Before the runtimes, which use them.
  absl::btree_map<std::string, std::unique_ptr<JobKeep>> keeps_;
  Remnants remnants_;  // before the runtimes, which read them
  absl::btree_map<std::string, std::unique_ptr<JobRuntime>> runtimes_;
  std::unique_ptr<session::Sessions> sessions_;
  snapshot::IoQueue lookups_;   // of stored jobs
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_NODE_H_
