// One job on one node, wired: the only place where session, membership,
// engine, collective and optimizer meet. It decides nothing about steps; it
// orders the life of the job.
//
//   all workers ready -> a stored state is read, if there is one -> links to
//     the other nodes -> Join -> View -> collective of the generation
//     -> initial weights from node 0 to all -> masters (both: not if stored)
//     -> recorded; of several nodes: all are Ready -> engine starts
//   Abort -> collective cancelled -> collective of the next generation starts
//   end   -> engine stopped, collective cancelled, updates done -> memory free
//   A link lost -> collective cancelled, updates done, links released ->
//     the nodes meet again: as above, but that each brings what it kept, and
//     the View says where the job goes on (membership/rejoin.h). A job that an
//     earlier daemon left comes in here.
//
// In three files: its parts, workers and end; _links: the other nodes and what
// the members say; _state: snapshots, replicas and what it goes on from.
//
// Threading: control thread only.
// Ownership: keeps all parts of the job but the LocalJob, which Sessions keeps
// until Stop has called back.
#ifndef SERVER_DAEMON_JOB_RUNTIME_H_
#define SERVER_DAEMON_JOB_RUNTIME_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/kernels.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/collective/collective.h"
#include "server/collective/published_chunks.h"
#include "server/daemon/job_loading.h"
#include "server/daemon/job_peers.h"
#include "server/daemon/job_record.h"
#include "server/daemon/job_resume.h"
#include "server/daemon/job_routes.h"
#include "server/daemon/job_weights.h"
#include "server/daemon/limited_log.h"
#include "server/daemon/peer_plane.h"
#include "server/daemon/relinking.h"
#include "server/daemon/replica_metrics.h"
#include "server/daemon/resumption.h"
#include "server/daemon/snapshot_metrics.h"
#include "server/daemon/weight_load.h"
#include "server/device/device.h"
#include "server/device/kept_device.h"
#include "server/engine/job_engine.h"
#include "server/engine/ports.h"
#include "server/ipc/process_state.h"
#include "server/layout/exchange_plan.h"
#include "server/membership/membership.h"
#include "server/metrics/metrics.h"
#include "server/optimizer/optimizer.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"
#include "server/session/local_job.h"
#include "server/session/process_watch.h"
#include "server/session/session.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/held_files.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/job_replicas.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/loader.h"

namespace ballast::daemon {

class JobRuntimeHost {
 public:
  virtual ~JobRuntimeHost() = default;
  // The job cannot go on here; EndJob follows. Never from inside StartJob.
  virtual void FailJob(session::LocalJob* job, const absl::Status& why) = 0;
  // The job goes on where another life, or other links, left it.
  virtual void OnWentOn(session::LocalJob* job) = 0;
  // It has a replica of its own: what an earlier life held may go.
  virtual void OnReplicaMade(const session::LocalJob& job) = 0;
};

struct JobRuntimeParts {
  session::LocalJob* job = nullptr;
  JobRuntimeHost* host = nullptr;
  Incarnation incarnation;  // of this job's first life on this node
  snapshot::LifeId life{};  // of the job, on node 0, also over a restart
  const base::Clock* clock = nullptr;
  base::Executor* executor = nullptr;
  base::ComputePool* pool = nullptr;
  device::Device* device = nullptr;
  const kernels::Kernels* kernels = nullptr;
  PeerPlane* peers = nullptr;  // null with one node
  // Null: the job ends with this daemon.
  JobRecord* record = nullptr;
  // Another one left it: TakeOver follows, and `left`, which is `device`,
  // adopts its memory.
  bool is_taken_over = false;
  device::KeptDevice* left = nullptr;
  std::shared_ptr<metrics::JobMetrics> metrics;  // shared with the scrape
  int buckets_in_flight = 8;
  int64_t batch_bytes = collective::Parts().batch_bytes;
  Algorithms algorithms;
  // Null: no snapshots are kept; then `io` is needed for replicas only.
  snapshot::FileSystem* snapshot_files = nullptr;
  base::ComputePool* io = nullptr;  // for files
  base::Random* random = nullptr;
  snapshot::Schedule snapshots;
  snapshot::ReplicaSchedule replicas;
  // What an earlier life of the job held on this node, until OnReplicaMade;
  // null: nothing.
  snapshot::HeldFiles* remnant = nullptr;
  std::function<void(const std::string& event)> log = nullptr;  // null: none
  absl::Duration default_hold = absl::Minutes(10);
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration peer_timeout = absl::InfiniteDuration();
  // How long nodes that lost one another try to meet again; zero: a lost link
  // ends the job.
  absl::Duration relink_timeout = absl::ZeroDuration();
  std::function<void(const std::string&)> warn;  // likewise
};

class JobRuntime final : public session::JobObserver,
                         public engine::WorkerPort,
                         public engine::MemberPort,
                         public membership::MembershipObserver,
                         public membership::FramePort,
                         public JobPeersHost,
                         public snapshot::SnapshotPort,
                         public optimizer::UpdateObserver,
                         public collective::CollectiveObserver {
 public:
  // Allocates the job's state. ResourceExhausted if it has no room.
  static absl::StatusOr<std::unique_ptr<JobRuntime>> Create(
      JobRuntimeParts parts);
  ~JobRuntime() override;

  // Goes on where the last daemon ended, once all nodes are there; the job's
  // workers are back. DataLoss: it left what contradicts itself.
  absl::Status TakeOver();

  // Ends this node's part. OK: its workers closed the job, what other nodes
  // still need is finished first. `done` is posted once nothing touches the
  // job's memory; this may be deleted then.
  void Stop(const absl::Status& why, absl::AnyInvocable<void() &&> done);

  const session::LocalJob& job() const { return *parts_.job; }
  bool is_kept() const { return parts_.record != nullptr; }
  const engine::JobEngine& engine() const { return *engine_; }
  optimizer::ShardState& state() const { return *state_; }
  const layout::ExchangePlan& plan() const { return *plan_; }
  // What the workers of this node see, and what is known of it; null but in
  // delta mode.
  std::span<std::byte> weights() const { return parts_.job->weights(); }
  collective::PublishedChunks* published() const { return published_.get(); }
  // Null without error feedback.
  optimizer::Residuals* residuals() const { return residuals_.get(); }
  Generation generation() const { return membership_->generation(); }
  absl::Time last_progress() const { return last_progress_; }
  // Null with one node.
  const JobPeers* peers() const { return peers_.get(); }
  const JobRoutes& routes() const { return routes_; }
  // Null where neither they nor replicas are kept.
  snapshot::JobSnapshots* snapshots() const { return snapshots_.get(); }
  // The operator's word that nodes which are missing are gone for good; on node
  // 0. FailedPrecondition: the job does not wait for it.
  absl::Status Adopt();
  // After Stop: its replicas, and none too: that this was one of its nodes is
  // worth knowing. Null: it keeps none, or has not begun.
  std::shared_ptr<snapshot::HeldFiles> TakeHeld();
  // Of a worker of this node; nullopt: nobody is there.
  std::optional<ipc::ProcessState> process_state(LocalRank rank) const;
  // Null if all weights are resident.
  const JobWeights* gathered() const { return weights_.get(); }

  // session::JobObserver
  std::string WaitingFor() const override;
  void OnAllReady() override;
  void OnPushed(LocalRank rank, BucketId bucket) override;
  void OnStepInput(LocalRank rank, std::span<const proto::GroupValues> groups,
                   std::string cursor) override;
  void OnStepInputRefused(LocalRank rank, const absl::Status& why) override;
  void OnWanted(LocalRank rank, int unit, uint64_t request) override;
  void OnWorkerLost(LocalRank rank, const absl::Status& why) override;
  void OnWorkerClosed(LocalRank rank) override;
  void OnAllClosed() override;
  // engine::WorkerPort
  void Open(Generation generation, Step step) override;
  void Consumed(BucketId bucket, Generation generation, Step step) override;
  void Published(BucketId bucket, Generation generation, Step step) override;
  void Committed(const engine::StepSummary& summary,
                 std::string_view rank0_cursor) override;
  void Finished(const engine::StepSummary& summary) override;
  void Aborted(Step step, Generation next, const absl::Status& why) override;
  // engine::MemberPort
  void CastVote(const v1::Vote& vote) override;
  void Leave(const absl::Status& why) override;
  // membership::MembershipObserver
  void OnView(Generation generation, const v1::View& view) override;
  void OnStart() override;
  void OnCommit(const v1::Commit& commit) override;
  void OnAbort(const v1::Abort& abort) override;
  void OnHeal(const v1::Heal& heal) override;
  void OnEnded(absl::Status why) override;
  void OnLost(absl::Status why) override;
  // JobPeersHost
  void OnLinked() override;
  void OnPeersLost(const absl::Status& why) override;
  void OnLinkLost(const absl::Status& why) override;
  void OnAllLinked() override;
  void OnPeerFrame(NodeRank from, const v1::PeerFrame& frame) override;
  std::string OwnWaitingFor() const override;
  std::optional<v1::EarlyClose> OwnEarlyClose() const override;
  void OnPeerClosed(const v1::EarlyClose& close) override;
  // snapshot::SnapshotPort
  void SendSnapshot(NodeRank to, const v1::SnapshotFrame& frame) override;
  absl::StatusOr<Step> HoldSteps() override;
  void ReleaseSteps() override;
  std::vector<snapshot::BudgetInfo> Budget() const override;
  void OnSnapshot(const absl::StatusOr<snapshot::Saved>& saved) override;
  void OnReplica(const absl::StatusOr<snapshot::Saved>& saved) override;
  std::string AttachedWorkers() const override;
  // membership::FramePort
  void Send(NodeRank to, const v1::PeerFrame& frame) override;
  // optimizer::UpdateObserver
  void OnUpdated(BucketId bucket) override;
  // collective::CollectiveObserver
  void OnReduced(BucketId bucket, const collective::Reduced& reduced) override;
  void OnPublished(BucketId bucket) override;
  void OnBroadcast() override;
  void OnCompared() override;
  void OnFailed(absl::Status status) override;

 private:
  // How long to wait for a better reason than a lost link.
  static constexpr absl::Duration kLastWord = absl::Milliseconds(300);

  explicit JobRuntime(JobRuntimeParts parts);
  absl::Status Initialize();
  absl::Status MakeWeights();
  void MakeSnapshots();
  void MakeResume();
  snapshot::LoadTarget MakeLoadTarget();
  void AgreeOnState();
  void Load();
  void OnLoaded(absl::StatusOr<snapshot::LoadedState> loaded,
                const std::string& source);
  void Measure();
  void MakeMembership();
  void JoinOthers();
  v1::Join MakeJoin() const;
  void KeepFinished(Step step);
  bool CanRelink() const;
  void StartRelinking(const absl::Status& why);
  void OnRelinkExpired();
  void Relink(const absl::Status& why);
  void MeetIfQuiet();
  void Meet();
  void ShowAbsent() const;
  absl::Status MakeCollective(Generation generation);
  collective::Parts CollectiveParts();
  void OnGatherFailed(const absl::Status& why);
  void CancelCollective(absl::AnyInvocable<void() &&> then);
  void StartFirst();
  void GoOn(const v1::View& view);
  absl::Status GoOnFrom(const v1::Commit& commit, Step state);
  bool Keep(const v1::PeerFrame& outcome);
  void Fail(const absl::Status& why);
  void FailSoon(const absl::Status& why);
  void BeginStop();
  void FinishStopIfQuiet();
  void Post(absl::AnyInvocable<void() &&> fn);

  const JobRuntimeParts parts_;
  const int num_nodes_;
  std::unique_ptr<layout::ExchangePlan> plan_;
  // Null but in delta mode.
  std::unique_ptr<collective::PublishedChunks> published_;
  std::unique_ptr<optimizer::ShardState> state_;
  std::unique_ptr<optimizer::Residuals> residuals_;  // with error feedback
  // Outlives what is being sent of it. Null: there are no replicas.
  std::shared_ptr<snapshot::HeldFiles> held_;
  // Null: neither snapshots nor replicas are kept.
  std::unique_ptr<snapshot::JobSnapshots> snapshots_;
  SnapshotMetrics snapshot_metrics_;
  ReplicaMetrics replica_metrics_;
  std::unique_ptr<JobLoading> loading_;  // of a stored job, until it is read
  // Null: other nodes are not asked what they hold.
  std::unique_ptr<JobResume> resume_;
  bool is_loaded_ = false;  // from files or a replica
  std::unique_ptr<optimizer::Optimizer> optimizer_;
  std::unique_ptr<WeightLoad> load_;
  std::unique_ptr<engine::JobEngine> engine_;
  Incarnation incarnation_;  // of this node's part in the membership
  // Null: no keeper, and links that are lost end the job.
  std::unique_ptr<JobRecord> own_record_;
  JobRecord* record_;  // that, or the keeper's
  membership::Parts members_;
  std::unique_ptr<membership::Membership> membership_;
  std::unique_ptr<JobPeers> peers_;      // outlive the weights
  JobRoutes routes_;                     // over the peers' transport
  std::unique_ptr<JobWeights> weights_;  // outlive the collective
  std::unique_ptr<collective::Collective> collective_;  // of the generation
  const std::unique_ptr<session::ProcessWatch> processes_;
  LimitedLog heals_;
  Relinking relinking_;
  base::TimerId fail_timer_ = 0;
  base::TimerId lost_timer_ = 0;
  base::TimerId relink_timer_ = 0;
  Generation generation_;
  Step first_step_;
  // Between two lives of the links: what this node knows.
  std::optional<Resumption> resumption_;
  Step committed_;  // and
  Step finished_;   // the last ones that snapshots were told of
  bool has_joined_ = false;
  bool has_started_ = false;   // the first weights are here
  bool awaits_start_ = false;  // the view's awaits_ready
  bool has_ended_ = false;     // for membership
  bool is_stopping_ = false;
  bool is_cancelling_ = false;  // a collective's Cancel is under way
  bool is_saving_ = false;      // a snapshot's Stop is under way
  bool is_quieting_ = false;    // before old links are released
  bool is_meeting_ = false;     // until the View that follows
  bool holds_steps_ = false;    // for a snapshot
  bool has_gone_on_ = false;    // where the last daemon ended
  bool has_warned_ = false;     // of notes that are too long
  absl::Status stop_reason_;
  absl::Time last_progress_;
  absl::AnyInvocable<void() &&> stopped_;
  std::shared_ptr<int> alive_;  // weak in what is posted
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_RUNTIME_H_
