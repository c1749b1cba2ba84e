// All jobs and workers of this node: checks every attach before anything is
// allocated, keeps the jobs' clocks (join timeout, hold) and the memory
// account, and sends each connection's events to its job.
//
//   connection --Attach--> job (made by its first worker) --Begin--> running
//
// Threading: control thread only.
// Ownership: keeps jobs and links; borrows device, executor and JobHost.
#ifndef SERVER_SESSION_SESSIONS_H_
#define SERVER_SESSION_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/executor.h"
#include "server/device/device.h"
#include "server/metrics/metrics.h"
#include "server/session/idle_connections.h"
#include "server/session/job_spec.h"
#include "server/session/limits.h"
#include "server/session/local_job.h"
#include "server/session/session.h"

namespace ballast::session {

using StoredDone =
    absl::AnyInvocable<void(absl::StatusOr<std::optional<StoredJob>>) &&>;
// `reply` is valid during the call only.
using AttachDone = absl::AnyInvocable<void(absl::StatusOr<AttachReply>) &&>;

// Of a job that is to outlive the daemon: where its memory comes from and its
// workers are left for the next one. Both outlive the job. Null: the memory is
// the sessions' device's, and nothing is kept.
struct JobMemory {
  device::Device* device = nullptr;
  base::Vault* vault = nullptr;
};

// Who computes for the jobs: the daemon, or a simulation.
class JobHost {
 public:
  virtual ~JobHost() = default;
  // For a job that is about to be made; StartJob follows, or if there is no
  // room for it ReleaseMemory.
  virtual JobMemory MemoryOf(const AttachRequest& request) = 0;
  virtual void ReleaseMemory(const std::string& job) = 0;
  // The first worker of `job` is here; allocates state and engine. The
  // observer lives until EndJob's `done`. An error refuses the attach.
  virtual absl::StatusOr<JobObserver*> StartJob(LocalJob* job) = 0;
  // `job` is over: closed by all its workers (`why` is OK; what other nodes
  // still need of it may be finished), failed, or its hold passed. No observer
  // call follows. `done` is called on the control thread once nothing touches
  // the job's memory any more.
  virtual void EndJob(LocalJob* job, const absl::Status& why,
                      absl::AnyInvocable<void() &&> done) = 0;
  // The stored state that a new job of this request of `uid` goes on from:
  // the one that it names, or the newest of its name; nullopt: none. `done`
  // is called on the control thread, perhaps at once.
  virtual void FindStored(const AttachRequest& request, uint32_t uid,
                          StoredDone done) = 0;
  // What a job has on its way between nodes, at most, on this node.
  virtual uint64_t WindowBytes(const JobSpec& job, const layout::Layout& layout,
                               NodeRank node) const = 0;
  // No worker of `job` is attached here, and new ones have come that are
  // another number: keeps its state for them. OK, or why it cannot be kept.
  // FailedPrecondition: the job goes on (workers are attached elsewhere, or
  // nothing is kept, or a snapshot cannot be). `done` is called once, later.
  virtual void SaveLast(LocalJob* job,
                        absl::AnyInvocable<void(absl::Status) &&> done) = 0;
  // `job` was held as long as it may be and ends: stores its state, if that is
  // kept at all. Where it is, "" if nowhere, or why it cannot be stored: it is
  // held, and this called again, until it can. AlreadyExists: another life of
  // the job has taken its place. `done` is called once, later.
  virtual void SaveHeld(
      LocalJob* job,
      absl::AnyInvocable<void(absl::StatusOr<std::string>) &&> done) = 0;
  // What is held of jobs that have ended.
  virtual uint64_t held_bytes() const = 0;
};

struct Options {
  Limits limits;
  IdleConnections::Options idle;
  absl::Duration default_hold = absl::Minutes(10);
  absl::Duration join_timeout = absl::Minutes(10);
  uint64_t default_bucket_bytes = 5 << 20;
  uint64_t chunk_bytes = 256 << 10;
  int compute_threads = 1;        // for the undo records in the memory formula
  bool keeps_snapshots = false;   // for the memory formula too
  bool keeps_replicas = false;    // likewise
  bool allow_many_nodes = false;  // a link to other nodes exists
  metrics::Metrics* metrics = nullptr;  // null: none
  // One line per event in the life of jobs and workers; null: none.
  std::function<void(const std::string& event)> log = nullptr;
};

class Sessions {
 public:
  // The key of a connection (proto::WelcomeMessage), as lower-case hex.
  using Key = std::string;

  Sessions(Options options, device::Device* device, base::Executor* executor,
           JobHost* host);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // A job that ran when the last daemon ended.
  struct TakenOver {
    AttachRequest request;  // of any of its ranks
    uint32_t uid = 0;
    uint64_t chunk_bytes = 0;
    struct Worker {
      Key key;  // of a connection that is here; empty: it is gone
      bool is_closed = false;
    };
    std::vector<Worker> workers;  // by local rank
  };

  // ---- Connections (handle socket). ----
  struct Connection;
  // The result lives as long as the link: for doorbells, without a look-up.
  Connection* OnConnected(Key key, std::unique_ptr<WorkerLink> link);
  void OnDoorbell(Connection* connection);
  void OnDoorbell(const Key& key);
  // The lease ended from the outside; the link is deleted.
  void OnDisconnected(const Key& key, const absl::Status& why);

  // ---- Calls (gRPC). FailedPrecondition: the key has no lease (any more).
  // ----
  absl::StatusOr<AttachReply> Attach(const Key& key, AttachRequest request);
  // Answers when the job runs, fails, or after `timeout` (DeadlineExceeded,
  // which says who is missing).
  void Begin(const Key& key, absl::Duration timeout, BeginDone done);
  absl::Status Detach(const Key& key);
  absl::Status Close(const Key& key);
  // The job of this connection, FailedPrecondition if it has none.
  absl::StatusOr<LocalJob*> JobOf(const Key& key);

  // ---- The daemon's side. ----
  // The job is made anew around the memory that was kept. Its observer has to
  // open it. An error, for whatever its workers are told, is the job's end.
  absl::StatusOr<LocalJob*> TakeOver(const TakenOver& job);
  // Ends one job with a reason that its workers are told.
  void FailJob(LocalJob* job, const absl::Status& why);
  // New connections' attaches are refused with `why` from now on.
  void StopAccepting(absl::Status why);
  // Every job fails with `why`; jobs() is empty once their hosts are done.
  void FailAll(const absl::Status& why);

  // Attach, at once, or once what it depends on is known: while a job of this
  // name is just ending, when it is gone; for a new job, when the host has
  // said what is stored of it.
  void AttachWhenKnown(const Key& key, AttachRequest request, AttachDone done);

  // Runs `fn`, which attaches, at once, or, while a job of this name is just
  // ending, when it is gone (or does not end in time): a worker that closed a
  // job may open one of the same name right away. If nobody is attached to the
  // old one any more and this rank has closed it, that ends it.
  void BeforeAttach(const Key& key, const AttachRequest& request,
                    absl::AnyInvocable<void() &&> fn);

  std::vector<LocalJob*> jobs() const;          // by name; ending ones too
  LocalJob* Find(std::string_view name) const;  // null: none
  int num_connections() const { return connections_.size(); }
  int num_idle_connections() const { return idle_.size(); }
  uint64_t attaches() const { return attaches_; }
  // By the formula, of all jobs, and what is held of those that have ended.
  uint64_t bytes() const;
  uint64_t BytesOf(std::string_view job) const;   // 0: there is none
  MemoryNeed NeedOf(std::string_view job) const;  // its parts
  // Why it is held longer than it may be; empty: it is not.
  std::string NotStored(std::string_view job) const;

 private:
  struct EndWaiter;
  struct PendingAttach;
  struct Job {
    std::unique_ptr<LocalJob> local;
    MemoryNeed need;
    uint32_t uid = 0;         // of its first worker: no other may join
    base::TimerId timer = 0;  // join timeout, then hold
    bool is_ending = false;
    bool is_saving = false;  // its last state, for another number of workers
    int saves_left = 0;
    int save_attempts = 0;                            // at the end of its hold
    std::string not_stored;                           // why
    std::vector<std::shared_ptr<EndWaiter>> waiters;  // for its deletion
  };
  void FindThenAttach(std::shared_ptr<PendingAttach> pending);
  absl::StatusOr<Connection*> Lookup(const Key& key);
  absl::StatusOr<Connection*> LookupAttached(const Key& key);
  absl::Status CheckMember(const Job& job, const Connection& connection,
                           const AttachRequest& request) const;
  absl::StatusOr<AttachReply> AttachTo(Job* job, const Key& key,
                                       Connection* connection,
                                       const AttachRequest& request);
  absl::StatusOr<Job*> CreateJob(const AttachRequest& request, uint32_t uid,
                                 uint64_t chunk_bytes);
  absl::Status StartJob(const AttachRequest& request, layout::Layout layout,
                        Job* job);
  void ArmHold(Job* job);
  void OnBeginTimer(const Key& key);
  void OnIdleTooLong(const Key& key, const absl::Status& why);
  void Leave(Connection* connection, const absl::Status& why);
  void EndIfAbandoned(Job* job, const absl::Status& why);
  bool IsNewRun(const Job& job, const Key& key, const AttachRequest& request);
  bool IsOfAnotherShape(const Job& job, const Key& key,
                        const AttachRequest& request);
  void SaveLast(Job* job);
  void EndHeld(Job* job);
  void OnSaveHeldLate(Job* job);
  void OnSavedHeld(Job* job, const absl::StatusOr<std::string>& path);
  void OnSavedLast(LocalJob* local, const absl::Status& saved);
  void ArmTimer(Job* job, absl::Duration delay);
  void OnTimer(const std::string& name);
  Job* JobOfLocal(const LocalJob* local);
  void End(Job* job, const absl::Status& why);
  void ReleaseConnections(Job* job, const absl::Status& why);
  void Delete(LocalJob* local);
  void Run(std::vector<std::shared_ptr<EndWaiter>> waiters);
  template <typename... Parts>
  void Log(const Parts&... parts) const;

  const Options options_;
  device::Device* const device_;
  base::Executor* const executor_;
  JobHost* const host_;
  absl::Status accepting_ = absl::OkStatus();
  absl::btree_map<std::string, std::unique_ptr<Job>> jobs_;  // by name
  // Ordered, so that a job's end reaches its workers in one order.
  absl::btree_map<Key, std::unique_ptr<Connection>> connections_;
  IdleConnections idle_;  // of connections_, those without a job
  uint64_t attaches_ = 0;
  std::shared_ptr<bool> alive_;  // weak in callbacks that may outlive this
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_SESSIONS_H_
