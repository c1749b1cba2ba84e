#include "server/session/sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/session/attach_rules.h"

namespace ballast::session {
namespace {

using metrics::Family;

// The link's words for how it ended (ipc/handle_connection.h).
std::string_view ReapCause(const absl::Status& why) {
  if (!absl::IsUnavailable(why)) return "protocol";
  return absl::StrContains(why.message(), "exited") ? "peer_exit"
                                                    : "peer_closed";
}

// How long a worker waits for the end of an earlier job of its job's name.
constexpr absl::Duration kEndWait = absl::Seconds(5);
// How often a job whose workers are gone here, and not elsewhere, is asked for
// its last state: for a little less than that.
constexpr int kMaxSaves = 10;

}  // namespace

struct Sessions::EndWaiter {
  absl::AnyInvocable<void() &&> fn;  // null: it was run
  base::TimerId timer = 0;

  void Run() {
    if (fn) std::exchange(fn, nullptr)();
  }
};

struct Sessions::Connection {
  std::unique_ptr<WorkerLink> link;
  Job* job = nullptr;
  LocalRank rank;
  bool has_closed = false;  // the job that it was attached to last
  base::TimerId begin_timer = 0;
};

Sessions::Sessions(Options options, device::Device* device,
                   base::Executor* executor, JobHost* host)
    : options_(std::move(options)),
      device_(device),
      executor_(executor),
      host_(host),
      idle_(options_.idle, executor,
            [this](const Key& key, const absl::Status& why) {
              OnIdleTooLong(key, why);
            }),
      alive_(std::make_shared<bool>(true)) {}

Sessions::~Sessions() {
  for (const auto& [name, job] : jobs_) {
    executor_->Cancel(job->timer);
    for (const auto& waiter : job->waiters) executor_->Cancel(waiter->timer);
  }
  for (const auto& [key, connection] : connections_) {
    executor_->Cancel(connection->begin_timer);
  }
}

template <typename... Parts>
void Sessions::Log(const Parts&... parts) const {
  if (options_.log != nullptr) options_.log(absl::StrCat(parts...));
}

// ---- Connections. ----

Sessions::Connection* Sessions::OnConnected(Key key,
                                            std::unique_ptr<WorkerLink> link) {
  auto connection = std::make_unique<Connection>();
  connection->link = std::move(link);
  Connection* const result = connection.get();
  connections_[key] = std::move(connection);
  idle_.Add(key, result->link->identity().uid);
  return result;
}

void Sessions::OnIdleTooLong(const Key& key, const absl::Status& why) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  const std::unique_ptr<Connection> connection = std::move(it->second);
  connections_.erase(it);
  if (options_.metrics != nullptr) {
    const char* cause = absl::IsDeadlineExceeded(why) ? "timeout" : "limit";
    options_.metrics->counter(Family::kIdleConnectionsClosed, {cause})
        ->Increment();
  }
  connection->link->Close(why);
}

void Sessions::OnDoorbell(Connection* connection) {
  if (connection->job == nullptr) return;
  connection->job->local->OnDoorbell(connection->rank);
}

void Sessions::OnDoorbell(const Key& key) {
  const auto connection = Lookup(key);
  if (connection.ok()) OnDoorbell(*connection);
}

void Sessions::OnDisconnected(const Key& key, const absl::Status& why) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  const std::unique_ptr<Connection> connection = std::move(it->second);
  connections_.erase(it);
  idle_.Remove(key);
  executor_->Cancel(connection->begin_timer);
  if (options_.metrics != nullptr && connection->job != nullptr) {
    options_.metrics->counter(Family::kLeasesReaped, {ReapCause(why)})
        ->Increment();
  }
  Leave(connection.get(), why);
}

absl::StatusOr<Sessions::Connection*> Sessions::Lookup(const Key& key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) {
    return absl::FailedPreconditionError(
        "this connection has no lease (any more): connect again");
  }
  return it->second.get();
}

absl::StatusOr<Sessions::Connection*> Sessions::LookupAttached(const Key& key) {
  ASSIGN_OR_RETURN(Connection * connection, Lookup(key));
  if (connection->job == nullptr) {
    return absl::FailedPreconditionError(
        "this connection is attached to no job");
  }
  return connection;
}

absl::StatusOr<LocalJob*> Sessions::JobOf(const Key& key) {
  ASSIGN_OR_RETURN(Connection * connection, LookupAttached(key));
  return connection->job->local.get();
}

// ---- Attach. ----

absl::StatusOr<AttachReply> Sessions::Attach(const Key& key,
                                             AttachRequest request) {
  ASSIGN_OR_RETURN(Connection * connection, Lookup(key));
  RETURN_IF_ERROR(accepting_);
  if (connection->job != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("this connection is attached to job ",
                     base::Quoted(connection->job->local->spec().name)));
  }
  if (request.job.bucket_bytes == 0) {
    request.job.bucket_bytes = options_.default_bucket_bytes;
  }
  RETURN_IF_ERROR(
      CheckRequest(request, options_.limits, options_.allow_many_nodes));
  if (const auto it = jobs_.find(request.job.name); it != jobs_.end()) {
    return AttachTo(it->second.get(), key, connection, request);
  }
  request.job.asks_nodes = options_.keeps_replicas &&
                           request.job.load.empty() &&
                           request.resume != Resume::kNever;
  request.job.must_resume = request.resume == Resume::kMust;
  if (request.job.must_resume && !request.job.asks_nodes &&
      !request.job.stored.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no job ", base::Quoted(request.job.name),
        " is held or stored here, and resume=\"must\" starts none"));
  }
  ASSIGN_OR_RETURN(Job * job,
                   CreateJob(request, connection->link->identity().uid,
                             options_.chunk_bytes));
  auto reply = AttachTo(job, key, connection, request);
  if (!reply.ok()) End(job, reply.status());
  return reply;
}

absl::Status Sessions::CheckMember(const Job& job, const Connection& connection,
                                   const AttachRequest& request) const {
  const std::string name = base::Quoted(job.local->spec().name);
  if (job.is_ending || job.is_saving) {
    return absl::UnavailableError(
        absl::StrCat("job ", name, " is just ending: try again"));
  }
  const uint32_t uid = connection.link->identity().uid;
  if (uid != job.uid && uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("job ", name, " belongs to another user"));
  }
  return CheckAgrees(*job.local, request);
}

absl::StatusOr<AttachReply> Sessions::AttachTo(Job* job, const Key& key,
                                               Connection* connection,
                                               const AttachRequest& request) {
  RETURN_IF_ERROR(CheckMember(*job, *connection, request));
  ASSIGN_OR_RETURN(
      const AttachReply reply,
      job->local->Attach(request.placement.local_rank, connection->link.get(),
                         request.has_initial_values));
  idle_.Remove(key);
  connection->job = job;
  connection->rank = request.placement.local_rank;
  connection->has_closed = false;
  ++attaches_;
  Log("worker attached job=", job->local->spec().name,
      " rank=", request.placement.rank.value(),
      " pid=", connection->link->identity().pid,
      job->local->has_begun() ? " resumed at the open step" : "");
  if (job->local->has_begun() && job->local->num_missing() == 0) {
    executor_->Cancel(std::exchange(job->timer, 0));
  }
  return reply;
}

absl::StatusOr<LocalJob*> Sessions::TakeOver(const TakenOver& taken) {
  const AttachRequest& request = taken.request;
  RETURN_IF_ERROR(
      CheckRequest(request, options_.limits, options_.allow_many_nodes));
  const std::string& name = request.job.name;
  if (static_cast<int>(taken.workers.size()) !=
          request.placement.local_world_size ||
      jobs_.contains(name)) {
    return absl::DataLossError(
        absl::StrCat("job ", base::Quoted(name), " was kept twice, or with ",
                     taken.workers.size(), " of ",
                     request.placement.local_world_size, " workers"));
  }
  ASSIGN_OR_RETURN(Job * job, CreateJob(request, taken.uid, taken.chunk_bytes));
  executor_->Cancel(std::exchange(job->timer, 0));
  for (size_t i = 0; i < taken.workers.size(); ++i) {
    const LocalRank rank(static_cast<int>(i));
    const auto it = connections_.find(taken.workers[i].key);
    Connection* const connection =
        it == connections_.end() ? nullptr : it->second.get();
    WorkerLink* link = nullptr;
    if (connection != nullptr && connection->job == nullptr) {
      idle_.Remove(it->first);
      connection->job = job;
      connection->rank = rank;
      connection->has_closed = taken.workers[i].is_closed;
      link = connection->link.get();
    }
    job->local->Adopt(rank, link, taken.workers[i].is_closed);
  }
  if (job->local->num_missing() > 0) ArmHold(job);
  return job->local.get();
}

absl::StatusOr<Sessions::Job*> Sessions::CreateJob(const AttachRequest& request,
                                                   uint32_t uid,
                                                   uint64_t chunk_bytes) {
  const std::string& name = request.job.name;
  if (static_cast<int>(jobs_.size()) >= options_.limits.max_jobs) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this daemon has ", jobs_.size(),
        " jobs, its limits.max_jobs: no room for job ", base::Quoted(name)));
  }
  const Limits& limits = options_.limits;
  RETURN_IF_ERROR(CheckRoom(
      limits, bytes(),
      LeastBytes(request.job, request.placement.local_world_size), name));
  ASSIGN_OR_RETURN(layout::Layout layout,
                   MakeLayout(request, chunk_bytes, limits.max_tensors));
  auto job = std::make_unique<Job>();
  job->uid = uid;
  job->need = EstimateMemory(request.job, layout, request.placement.node_rank,
                             options_.compute_threads, options_.keeps_snapshots,
                             options_.keeps_replicas);
  job->need.windows =
      host_->WindowBytes(request.job, layout, request.placement.node_rank);
  RETURN_IF_ERROR(CheckRoom(limits, bytes(), job->need.total(), name));
  RETURN_IF_ERROR(StartJob(request, std::move(layout), job.get()));
  Job* const result = job.get();
  jobs_[name] = std::move(job);
  ArmTimer(result, options_.join_timeout);
  Log("job started job=", name, " world_size=", request.placement.world_size,
      " bytes=", result->need.total());
  return result;
}

absl::Status Sessions::StartJob(const AttachRequest& request,
                                layout::Layout layout, Job* job) {
  const JobMemory memory = host_->MemoryOf(request);
  auto local =
      LocalJob::Create(memory.device != nullptr ? memory.device : device_,
                       executor_, request.job, std::move(layout),
                       request.placement.node_rank, job->uid, memory.vault);
  absl::StatusOr<JobObserver*> observer = nullptr;
  if (local.ok()) {
    observer = host_->StartJob(local->get());
  } else {
    observer = local.status();
  }
  if (!observer.ok()) {
    host_->ReleaseMemory(request.job.name);
    return absl::IsResourceExhausted(observer.status())
               ? ForMemory(observer.status())
               : observer.status();
  }
  job->local = *std::move(local);
  job->local->set_observer(*observer);
  return absl::OkStatus();
}

// ---- The other calls. ----

void Sessions::Begin(const Key& key, absl::Duration timeout, BeginDone done) {
  const auto found = LookupAttached(key);
  if (!found.ok()) {
    std::move(done)(found.status());
    return;
  }
  Connection* const connection = *found;
  executor_->Cancel(std::exchange(connection->begin_timer, 0));
  if (timeout < absl::InfiniteDuration()) {
    connection->begin_timer = executor_->PostAfter(
        timeout, [this, key, alive = std::weak_ptr<bool>(alive_)] {
          if (alive.lock() != nullptr) OnBeginTimer(key);
        });
  }
  connection->job->local->Begin(connection->rank, std::move(done));
}

void Sessions::OnBeginTimer(const Key& key) {
  const auto connection = LookupAttached(key);
  if (!connection.ok()) return;
  LocalJob& local = *(*connection)->job->local;
  const std::string missing = local.WaitingFor();
  local.CancelBegin(
      (*connection)->rank,
      absl::DeadlineExceededError(absl::StrCat(
          "job ", base::Quoted(local.spec().name), " does not run yet: ",
          missing.empty() ? "all workers of this node are here, but the "
                            "first weights are not"
                          : missing)));
}

absl::Status Sessions::Detach(const Key& key) {
  ASSIGN_OR_RETURN(Connection * connection, LookupAttached(key));
  Leave(connection, absl::CancelledError("the worker detached"));
  if (connections_.contains(key)) {
    idle_.Add(key, connection->link->identity().uid);
  }
  return absl::OkStatus();
}

absl::Status Sessions::Close(const Key& key) {
  ASSIGN_OR_RETURN(Connection * connection, Lookup(key));
  // Asked again: the daemon that heard it first died before it answered.
  if (connection->has_closed) return absl::OkStatus();
  RETURN_IF_ERROR(LookupAttached(key).status());
  Job* const job = connection->job;
  connection->has_closed = true;
  job->local->Close(connection->rank);
  if (!job->local->has_begun()) {
    // Nobody else can begin it any more.
    const int rank = job->local->RankOf(connection->rank).value();
    connection->job = nullptr;
    job->local->OnLinkGone(connection->rank, absl::OkStatus());
    idle_.Add(key, connection->link->identity().uid);
    End(job, absl::FailedPreconditionError(absl::StrCat(
                 "rank ", rank, " closed job ",
                 base::Quoted(job->local->spec().name), " before it began")));
    return absl::OkStatus();
  }
  if (job->local->num_closed() == job->local->local_world_size()) {
    End(job, absl::OkStatus());
  } else {
    EndIfAbandoned(job, absl::OkStatus());
  }
  return absl::OkStatus();
}

void Sessions::Leave(Connection* connection, const absl::Status& why) {
  Job* const job = std::exchange(connection->job, nullptr);
  if (job == nullptr) return;
  LocalJob& local = *job->local;
  if (local.slot(connection->rank).state() != SlotState::kClosed) {
    Log("worker left job=", local.spec().name,
        " local_rank=", connection->rank.value(),
        " pid=", connection->link->identity().pid, " reason=\"",
        std::string(why.message()), "\"");
  }
  local.OnLinkGone(connection->rank, why);
  EndIfAbandoned(job, why);
  if (job->is_ending || !local.has_begun() || local.num_missing() == 0) return;
  ArmHold(job);
}

void Sessions::EndIfAbandoned(Job* job, const absl::Status& why) {
  const LocalJob& local = *job->local;
  if (job->is_ending || local.num_attached() > 0) return;
  const std::string name = base::Quoted(local.spec().name);
  if (!local.has_begun()) {
    End(job, absl::CancelledError(absl::StrCat(
                 "all workers of job ", name,
                 " left before it began: ", std::string(why.message()))));
  } else if (local.is_over()) {
    End(job, absl::CancelledError(
                 absl::StrCat("some workers of job ", name,
                              " closed it, the others left without")));
  }
}

// ---- The life of jobs. ----

void Sessions::ArmTimer(Job* job, absl::Duration delay) {
  executor_->Cancel(job->timer);
  job->timer =
      executor_->PostAfter(delay, [this, name = job->local->spec().name,
                                   alive = std::weak_ptr<bool>(alive_)] {
        if (alive.lock() != nullptr) OnTimer(name);
      });
}

void Sessions::OnTimer(const std::string& name) {
  const auto it = jobs_.find(name);
  if (it == jobs_.end() || it->second->is_ending) return;
  Job* const job = it->second.get();
  job->timer = 0;
  if (!job->local->has_begun()) {
    const std::string missing = job->local->WaitingFor();
    End(job, absl::DeadlineExceededError(
                 absl::StrCat("job ", base::Quoted(name),
                              " did not start within jobs.join_timeout = ",
                              absl::FormatDuration(options_.join_timeout), ": ",
                              missing.empty() ? "no first weights" : missing)));
  } else if (job->is_saving) {
    OnSaveHeldLate(job);
  } else if (job->local->num_missing() > 0) {
    EndHeld(job);
  }
}

Sessions::Job* Sessions::JobOfLocal(const LocalJob* local) {
  for (const auto& [name, job] : jobs_) {
    if (job->local.get() == local) return job.get();
  }
  return nullptr;
}

void Sessions::FailJob(LocalJob* local, const absl::Status& why) {
  if (Job* const job = JobOfLocal(local); job != nullptr) End(job, why);
}

void Sessions::End(Job* job, const absl::Status& why) {
  if (job->is_ending) return;
  job->is_ending = true;
  executor_->Cancel(std::exchange(job->timer, 0));
  LocalJob* const local = job->local.get();
  Log("job ended job=", local->spec().name, " reason=\"",
      why.ok() ? "closed by all workers" : std::string(why.message()), "\"");
  if (!why.ok()) local->Fail(why);
  ReleaseConnections(job, why);
  // The host may answer from inside one of this job's own functions: the job
  // is deleted from the executor.
  host_->EndJob(local, why, [this, local, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.lock() == nullptr) return;
    executor_->Post([this, local, alive] {
      if (alive.lock() != nullptr) Delete(local);
    });
  });
}

void Sessions::ReleaseConnections(Job* job, const absl::Status& why) {
  std::vector<Key> leaving;
  for (const auto& [key, connection] : connections_) {
    if (connection->job == job) leaving.push_back(key);
  }
  for (const Key& key : leaving) {
    Connection* const connection = connections_[key].get();
    connection->job = nullptr;
    job->local->OnLinkGone(connection->rank, why);
    if (why.ok()) continue;
    executor_->Cancel(connection->begin_timer);
    connection->link->Close(why);
    connections_.erase(key);
  }
  if (!why.ok()) return;
  // After a Close the connection stays: its reply is still on the way.
  for (const Key& key : leaving) {
    const auto it = connections_.find(key);
    if (it == connections_.end()) continue;
    idle_.Add(key, it->second->link->identity().uid);
  }
}

void Sessions::Delete(LocalJob* local) {
  Job* const job = JobOfLocal(local);
  if (job == nullptr) return;
  auto waiters = std::exchange(job->waiters, {});
  jobs_.erase(std::string(local->spec().name));
  Run(std::move(waiters));
}

void Sessions::Run(std::vector<std::shared_ptr<EndWaiter>> waiters) {
  for (const auto& waiter : waiters) {
    executor_->Cancel(waiter->timer);
    waiter->Run();
  }
}

// Shared by the functions that wait in turn.
struct Sessions::PendingAttach {
  Key key;
  AttachRequest request;
  AttachDone done;
};

void Sessions::AttachWhenKnown(const Key& key, AttachRequest request,
                               AttachDone done) {
  auto pending = std::make_shared<PendingAttach>(
      PendingAttach{key, std::move(request), std::move(done)});
  BeforeAttach(key, pending->request,
               [this, pending] { FindThenAttach(std::move(pending)); });
}

void Sessions::FindThenAttach(std::shared_ptr<PendingAttach> pending) {
  const auto attach = [this, pending] {
    std::move(pending->done)(Attach(pending->key, std::move(pending->request)));
  };
  const AttachRequest& request = pending->request;
  const auto connection = Lookup(pending->key);
  const bool starts_fresh =
      request.resume == Resume::kNever && request.job.load.empty();
  if (!connection.ok() || !accepting_.ok() || starts_fresh ||
      jobs_.contains(request.job.name)) {
    return attach();
  }
  // The path of a search in files depends on what is checked here.
  if (absl::Status status =
          CheckRequest(request, options_.limits, options_.allow_many_nodes);
      !status.ok()) {
    return std::move(pending->done)(std::move(status));
  }
  host_->FindStored(request, (*connection)->link->identity().uid,
                    [pending, attach, alive = std::weak_ptr<bool>(alive_)](
                        absl::StatusOr<std::optional<StoredJob>> stored) {
                      if (!stored.ok())
                        return std::move(pending->done)(stored.status());
                      if (alive.lock() == nullptr) return;
                      pending->request.job.stored = *std::move(stored);
                      attach();
                    });
}

void Sessions::BeforeAttach(const Key& key, const AttachRequest& request,
                            absl::AnyInvocable<void() &&> fn) {
  const auto it = jobs_.find(request.job.name);
  if (it == jobs_.end()) return std::move(fn)();
  Job* const job = it->second.get();
  if (IsNewRun(*job, key, request)) {
    End(job, absl::AbortedError(
                 "a rank that had closed the job came again: a new run of it"));
  }
  if (IsOfAnotherShape(*job, key, request)) {
    executor_->Cancel(std::exchange(job->timer, 0));
    job->saves_left = kMaxSaves;
    SaveLast(job);
  }
  if (!job->is_ending && !job->is_saving) return std::move(fn)();
  auto waiter = std::make_shared<EndWaiter>();
  waiter->fn = std::move(fn);
  waiter->timer = executor_->PostAfter(kEndWait, [waiter] { waiter->Run(); });
  job->waiters.push_back(std::move(waiter));
}

// Only a job that is held for the replacement of a lost worker is in the way
// of a new run: whoever is attached has a job that goes on.
bool Sessions::IsNewRun(const Job& job, const Key& key,
                        const AttachRequest& request) {
  const auto connection = Lookup(key);
  if (!connection.ok() || job.is_ending) return false;
  const LocalJob& local = *job.local;
  const uint32_t uid = (*connection)->link->identity().uid;
  const int rank = request.placement.local_rank.value();
  return (uid == job.uid || uid == 0) && request.resume != Resume::kMust &&
         local.has_begun() && local.num_attached() == 0 && rank >= 0 &&
         rank < local.local_world_size() &&
         local.slot(LocalRank(rank)).state() == SlotState::kClosed;
}

// The same, if it is another number of workers, or this is another node: where
// what the job has come to can be kept for them. Without replicas that is a
// snapshot, of which several nodes would have to know at the same moment.
bool Sessions::IsOfAnotherShape(const Job& job, const Key& key,
                                const AttachRequest& request) {
  const auto connection = Lookup(key);
  if (!connection.ok() || job.is_ending || job.is_saving) return false;
  const LocalJob& local = *job.local;
  const layout::Topology& topology = local.layout().topology();
  const uint32_t uid = (*connection)->link->identity().uid;
  const Placement& placement = request.placement;
  const bool is_kept = options_.keeps_replicas ||
                       (options_.keeps_snapshots && topology.num_nodes == 1 &&
                        placement.num_nodes() == 1);
  return is_kept && (uid == job.uid || uid == 0) &&
         request.resume != Resume::kNever && local.has_begun() &&
         local.num_attached() == 0 && local.units() == nullptr &&
         (placement.world_size != topology.world_size() ||
          placement.local_world_size != topology.local_world_size ||
          placement.node_rank != local.node());
}

void Sessions::StopAccepting(absl::Status why) {
  accepting_ = ForDraining(std::move(why));
}

void Sessions::FailAll(const absl::Status& why) {
  for (LocalJob* const job : jobs()) FailJob(job, why);
}

std::vector<LocalJob*> Sessions::jobs() const {
  std::vector<LocalJob*> jobs;
  for (const auto& [name, job] : jobs_) jobs.push_back(job->local.get());
  return jobs;
}

LocalJob* Sessions::Find(std::string_view name) const {
  const auto it = jobs_.find(std::string(name));
  return it == jobs_.end() ? nullptr : it->second->local.get();
}

uint64_t Sessions::bytes() const {
  uint64_t total = host_->held_bytes();
  for (const auto& [name, job] : jobs_) total += BytesOf(name);
  return total;
}

uint64_t Sessions::BytesOf(std::string_view job) const {
  return NeedOf(job).total();
}

MemoryNeed Sessions::NeedOf(std::string_view job) const {
  const auto it = jobs_.find(std::string(job));
  if (it == jobs_.end()) return {};
  MemoryNeed need = it->second->need;
  if (it->second->local->has_begun()) need.initial = 0;
  return need;
}

}  // namespace ballast::session
