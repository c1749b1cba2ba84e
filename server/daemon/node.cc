#include "server/daemon/node.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/optimizer_name.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/collective/collective.h"
#include "server/daemon/job_identity.h"
#include "server/ipc/process_state.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"
#include "server/snapshot/loader.h"
#include "server/snapshot/stored.h"

namespace ballast::daemon {
namespace {

void FillWorkers(const session::LocalJob& job, v1::GetJobReply* reply) {
  const int first = job.layout().topology().FirstRank(job.node()).value();
  for (int l = 0; l < job.local_world_size(); ++l) {
    const session::Slot& slot = job.slot(LocalRank(l));
    v1::WorkerStatus* const worker = reply->add_workers();
    worker->set_rank(first + l);
    worker->set_local_rank(l);
    worker->set_state(std::string(session::Name(slot.state())));
    worker->set_pid(slot.identity().pid);
    worker->set_incarnation(slot.identity().incarnation.value());
    worker->set_buckets_pushed(job.buckets_pushed(LocalRank(l)));
  }
}

void FillProcesses(const JobRuntime& runtime, v1::GetJobReply* reply) {
  for (int l = 0; l < reply->workers_size(); ++l) {
    const auto state = runtime.process_state(LocalRank(l));
    if (!state.has_value()) continue;
    reply->mutable_workers(l)->set_process(std::string(ipc::Name(*state)));
  }
}

double PerSecond(double seconds_per_byte) {
  return seconds_per_byte > 0 ? 1 / seconds_per_byte : 0;
}

void FillMemory(const session::MemoryNeed& need, v1::MemoryParts* parts) {
  parts->set_gradients(need.gradients);
  parts->set_weights(need.weights);
  parts->set_owned(need.owned);
  parts->set_initial(need.initial);
  parts->set_control_blocks(need.control_blocks);
  parts->set_state(need.state);
  parts->set_undo(need.undo);
  parts->set_residuals(need.residuals);
  parts->set_snapshot(need.snapshot);
  parts->set_replicas(need.replicas);
  parts->set_windows(need.windows);
}

void FillSteps(const engine::JobEngine& engine, v1::GetJobReply* reply) {
  const engine::Counts counts = engine.counts();
  reply->set_steps_committed(counts.committed);
  reply->set_steps_skipped(counts.skipped);
  reply->set_steps_aborted(counts.aborted);
  const engine::StepSummary& last = engine.last_summary();
  reply->set_last_grad_norm(last.grad_norm);
  reply->set_last_step_seconds(last.seconds);
  reply->set_fallbacks(last.fallbacks);
  reply->set_weight_chunks_bad(counts.chunks_bad);
  reply->set_weight_chunks_healed(counts.chunks_healed);
}

// What crosses by another codec than the policy's: a few by name.
void FillWider(const layout::Layout& layout, const layout::ExchangePlan& plan,
               layout::Path path, v1::PathQuality* quality) {
  constexpr int kMaxNamed = 16;
  quality->set_num_wider(plan.num_wider(path));
  for (const TensorId tensor : plan.metered(path)) {
    const layout::CodecId codec = plan.codecs(tensor).on(path).codec;
    const layout::CodecId policy = plan.policy_codecs(tensor).on(path).codec;
    if (codec == policy) continue;
    if (quality->wider_size() == kMaxNamed) return;
    v1::WiderCodec* const wider = quality->add_wider();
    wider->set_tensor(layout.tensor(tensor).name);
    wider->set_codec(std::string(layout::Name(codec)));
    wider->set_policy_codec(std::string(layout::Name(policy)));
  }
}

void FillQuality(const layout::Layout& layout, const JobRuntime& runtime,
                 v1::GetJobReply* reply) {
  reply->set_max_relative_error(runtime.plan().policy().max_relative_error);
  reply->set_exact_ratio(runtime.engine().exact_ratio());
  for (const layout::Path path : layout::kPaths) {
    if (runtime.plan().metered(path).empty()) continue;
    const v1::ErrorReport& report = runtime.engine().last_errors(path);
    v1::PathQuality* const quality = reply->add_quality();
    quality->set_path(std::string(layout::Name(path)));
    quality->set_relative_error(report.relative_error());
    quality->set_clipped_share(report.clipped_share());
    quality->set_sampled(report.sampled());
    if (path == layout::Path::kGradients) {
      quality->set_residual_norm(runtime.engine().residual_norm().value_or(0));
    }
    FillWider(layout, runtime.plan(), path, quality);
    for (const v1::TensorError& error : report.worst()) {
      // A peer's word.
      const auto num_tensors = static_cast<int>(layout.tensors().size());
      if (error.tensor() < 0 || error.tensor() >= num_tensors) continue;
      const TensorId tensor(error.tensor());
      v1::TensorQuality* const worst = quality->add_worst();
      worst->set_tensor(layout.tensor(tensor).name);
      worst->set_codec(std::string(
          layout::Name(runtime.plan().codecs(tensor).on(path).codec)));
      worst->set_relative_error(error.relative_error());
    }
  }
}

void FillSnapshots(const snapshot::JobSnapshots* snapshots,
                   v1::SnapshotStatus* reply) {
  if (snapshots == nullptr || !snapshots->keeps_files()) return;
  const snapshot::SnapshotStatus status = snapshots->status();
  reply->set_enabled(true);
  reply->set_saving(status.is_saving);
  reply->set_bytes_written(status.bytes_written);
  reply->set_bytes_total(status.bytes_total);
  reply->set_saved(status.saved);
  reply->set_failed(status.failed);
  reply->set_skipped(status.skipped);
  reply->set_superseded(status.superseded);
  reply->set_other_life(status.other_life);
  if (status.last.has_value()) {
    reply->set_last_path(status.last->path);
    reply->set_last_step(status.last->step);
    reply->set_last_size_bytes(status.last->size_bytes);
  }
  reply->set_last_seconds(absl::ToDoubleSeconds(status.last_duration));
  reply->set_last_error(std::string(status.last_error.message()));
}

void FillReplicas(const snapshot::JobSnapshots* snapshots,
                  v1::ReplicaStatus* reply) {
  if (snapshots == nullptr) return;
  const snapshot::ReplicaStatus status = snapshots->status().replicas;
  reply->set_enabled(status.is_enabled);
  reply->set_made(status.made);
  reply->set_failed(status.failed);
  reply->set_skipped(status.skipped);
  reply->set_last_step(status.last_step);
  reply->set_lag_steps(status.lag_steps);
  reply->set_held_bytes(status.held_bytes);
  reply->set_bytes_sent(status.bytes_sent);
  reply->set_bytes_received(status.bytes_received);
  reply->set_last_error(std::string(status.last_error.message()));
}

session::Options SessionOptions(const Leaves& leaves,
                                const NodeOptions& options) {
  session::Options result = options.sessions;
  result.allow_many_nodes = leaves.peers != nullptr;
  result.keeps_snapshots = leaves.snapshot_files != nullptr;
  result.keeps_replicas = options.replicas.every_steps > 0;
  return result;
}

}  // namespace

Node::Node(const Leaves& leaves, const NodeOptions& options)
    : leaves_(leaves),
      options_(options),
      remnants_(leaves.executor, options.sessions.log),
      sessions_(std::make_unique<session::Sessions>(
          SessionOptions(leaves, options), leaves.device, leaves.executor,
          this)),
      lookups_(leaves.io),
      alive_(std::make_shared<int>(0)) {}

Node::~Node() {
  // Runtimes borrow what the sessions keep.
  runtimes_.clear();
}

void Node::Warn(const std::string& line) const {
  if (leaves_.warn != nullptr) leaves_.warn(line);
}

absl::StatusOr<session::JobObserver*> Node::StartJob(session::LocalJob* job) {
  const std::string& name = job->spec().name;
  const Incarnation incarnation(leaves_.random->Next());
  // One that a version left which knew of none begins another life each time.
  snapshot::LifeId life{incarnation.value()};
  JobKeep* keep = nullptr;
  if (const auto it = keeps_.find(name); it != keeps_.end()) {
    keep = it->second.get();
    if (!keep->is_taken_over()) {
      RETURN_IF_ERROR(MakeRecord(*job, life, keep));
    } else if (keep->record()->job().layout_digest() !=
               job->layout().digest()) {
      return absl::FailedPreconditionError(
          "this version lays the job's tensors out in another way: start the "
          "version of ballastd that made it");
    } else if (keep->record()->job().life() != 0) {
      life = snapshot::LifeId{keep->record()->job().life()};
    }
  }
  if (job->layout().topology().num_nodes > 1) {
    RETURN_IF_ERROR(leaves_.peers->Check(job->node(), job->spec().coordinator));
  }
  JobRuntimeParts parts;
  parts.job = job;
  parts.host = this;
  parts.incarnation = incarnation;
  parts.life = life;
  parts.clock = leaves_.clock;
  parts.executor = leaves_.executor;
  parts.pool = leaves_.pool;
  parts.device = leaves_.device;
  if (keep != nullptr) {
    parts.device = keep->device();
    parts.record = keep->record();
    parts.is_taken_over = keep->is_taken_over();
    parts.left = keep->device();
  }
  parts.kernels = leaves_.kernels;
  parts.peers = leaves_.peers;
  if (leaves_.metrics != nullptr) {
    parts.metrics = leaves_.metrics->StartJob(name);
  }
  parts.buckets_in_flight = options_.buckets_in_flight;
  parts.batch_bytes = options_.batch_bytes;
  parts.default_hold = options_.sessions.default_hold;
  parts.snapshot_files = leaves_.snapshot_files;
  parts.io = leaves_.io;
  parts.random = leaves_.random;
  parts.snapshots = options_.snapshots;
  parts.replicas = options_.replicas;
  if (job->spec().asks_nodes) {
    parts.remnant = remnants_.Claim(OwnerOf(*job)).get();
  } else {
    remnants_.Drop(OwnerOf(*job), "the job begins without them");
  }
  parts.join_timeout = options_.sessions.join_timeout;
  parts.peer_timeout = options_.peer_timeout;
  parts.relink_timeout = options_.relink_timeout;
  parts.algorithms = options_.algorithms;
  parts.log = options_.sessions.log;
  parts.warn = leaves_.warn;
  auto runtime = JobRuntime::Create(std::move(parts));
  if (!runtime.ok()) {
    remnants_.Release(OwnerOf(*job), HoldOf(*job));
    return runtime.status();
  }
  JobRuntime* const result = runtime->get();
  runtimes_[name] = *std::move(runtime);
  return result;
}

// ---- What jobs leave. ----

Remnants::Owner Node::OwnerOf(const session::LocalJob& job) {
  return {job.spec().name, job.spec().tenant, job.uid()};
}

absl::Duration Node::HoldOf(const session::LocalJob& job) const {
  return job.spec().hold > absl::ZeroDuration()
             ? job.spec().hold
             : options_.sessions.default_hold;
}

void Node::LeaveRemnant(const session::LocalJob& job, JobRuntime* runtime,
                        bool is_closed) {
  if (is_closed) return remnants_.Drop(OwnerOf(job), "the job is closed");
  auto held = runtime->TakeHeld();
  const bool is_better = held != nullptr && (held->bytes_in_use() > 0 ||
                                             !remnants_.Has(OwnerOf(job)));
  if (is_better) {
    return remnants_.Keep(OwnerOf(job), std::move(held), HoldOf(job));
  }
  remnants_.Release(OwnerOf(job), HoldOf(job));
}

void Node::OnReplicaMade(const session::LocalJob& job) {
  remnants_.Drop(OwnerOf(job), "the job has newer ones");
}

void Node::SaveLast(session::LocalJob* job,
                    absl::AnyInvocable<void(absl::Status) &&> done) {
  const auto it = runtimes_.find(job->spec().name);
  if (it == runtimes_.end() || it->second->snapshots() == nullptr) {
    return leaves_.executor->Post([done = std::move(done)]() mutable {
      std::move(done)(absl::FailedPreconditionError("it keeps no replicas"));
    });
  }
  if (options_.replicas.every_steps == 0) {
    return SaveHeld(job, [done = std::move(done)](
                             absl::StatusOr<std::string> path) mutable {
      if (path.ok() && !path->empty()) return std::move(done)(path.status());
      std::move(done)(absl::FailedPreconditionError(absl::StrCat(
          "its state cannot be stored for workers in another shape: ",
          path.ok() ? "no snapshots are kept"
                    : std::string(path.status().message()))));
    });
  }
  it->second->snapshots()->SaveLast(
      [done = std::move(done)](absl::StatusOr<snapshot::Saved> saved) mutable {
        std::move(done)(saved.status());
      });
}

void Node::SaveHeld(
    session::LocalJob* job,
    absl::AnyInvocable<void(absl::StatusOr<std::string>) &&> done) {
  const auto post = [this, &done](std::string path) {
    leaves_.executor->Post(
        [path = std::move(path), done = std::move(done)]() mutable {
          std::move(done)(std::move(path));
        });
  };
  const auto it = runtimes_.find(job->spec().name);
  snapshot::JobSnapshots* const snapshots =
      it == runtimes_.end() ? nullptr : it->second->snapshots();
  if (snapshots == nullptr || !snapshots->keeps_files()) return post("");
  const snapshot::SnapshotStatus status = snapshots->status();
  const bool is_stored =
      status.last.has_value() &&
      status.last->step == it->second->engine().weight_version().value();
  if (is_stored) return post(status.last->path);
  snapshots->Save("", [snapshots, done = std::move(done)](
                          absl::StatusOr<snapshot::Saved> saved) mutable {
    if (saved.ok()) return std::move(done)(saved->path);
    if (snapshots->status().other_life.empty()) {
      return std::move(done)(saved.status());
    }
    std::move(done)(absl::AlreadyExistsError(saved.status().message()));
  });
}

void Node::FindStored(const session::AttachRequest& request, uint32_t uid,
                      session::StoredDone done) {
  const session::JobSpec& job = request.job;
  if (leaves_.snapshot_files == nullptr) {
    if (job.load.empty()) return std::move(done)(std::nullopt);
    return std::move(done)(absl::FailedPreconditionError(absl::StrCat(
        "load=", base::Quoted(job.load),
        ": this daemon keeps no snapshots; set its snapshots.directory")));
  }
  // Two threads, in turn.
  auto found =
      std::make_shared<absl::StatusOr<std::optional<snapshot::Stored>>>();
  lookups_.Run(
      [found, files = leaves_.snapshot_files, name = job.name, load = job.load,
       identity = IdentityOf(job, uid), tensors = job.tensors] {
        *found = snapshot::FindStored(*files, name, load, identity, tensors);
      },
      [found, done = std::move(done)]() mutable {
        if (!found->ok()) return std::move(done)(found->status());
        if (!(*found)->has_value()) return std::move(done)(std::nullopt);
        const snapshot::Stored& stored = ***found;
        std::move(done)(
            session::StoredJob{stored.path, stored.checksum, stored.step});
      });
}

absl::Status Node::AdoptJob(const std::string& name) {
  const auto it = runtimes_.find(name);
  if (it == runtimes_.end()) {
    return absl::NotFoundError(
        absl::StrCat("there is no job ", base::Quoted(name), " on this node"));
  }
  RETURN_IF_ERROR(it->second->Adopt());
  if (options_.sessions.log != nullptr) {
    options_.sessions.log(absl::StrCat("job adopted job=", name,
                                       " reason=\"the operator's word\""));
  }
  return absl::OkStatus();
}

void Node::SaveSnapshot(const std::string& job, const std::string& name,
                        snapshot::SaveDone done) {
  const auto it = runtimes_.find(job);
  if (it == runtimes_.end()) {
    return std::move(done)(absl::NotFoundError(
        absl::StrCat("there is no job ", base::Quoted(job), " on this node")));
  }
  if (it->second->snapshots() == nullptr) {
    return std::move(done)(absl::FailedPreconditionError(
        "this daemon keeps no snapshots: set its snapshots.directory"));
  }
  it->second->snapshots()->Save(name, std::move(done));
}

void Node::EndJob(session::LocalJob* job, const absl::Status& why,
                  absl::AnyInvocable<void() &&> done) {
  const std::string name = job->spec().name;
  const auto it = runtimes_.find(name);
  if (it == runtimes_.end()) {
    ReleaseMemory(name);
    std::move(done)();
    return;
  }
  // The runtime posts this for the last thing it does.
  it->second->Stop(why, [this, job, name, is_closed = why.ok(),
                         done = std::move(done)]() mutable {
    leaves_.executor->Post([this, job, name, is_closed, done = std::move(done),
                            alive = std::weak_ptr<int>(alive_)]() mutable {
      if (alive.expired()) return;
      const auto it = runtimes_.find(name);
      LeaveRemnant(*job, it->second.get(), is_closed);
      runtimes_.erase(it);
      ReleaseMemory(name);
      std::move(done)();
    });
  });
}

void Node::FailJob(session::LocalJob* job, const absl::Status& why) {
  sessions_->FailJob(job, why);
}

uint64_t Node::WindowBytes(const session::JobSpec& job,
                           const layout::Layout& layout, NodeRank node) const {
  const auto policy = layout::ParsePolicy(job.exchange);
  if (!policy.ok()) return 0;  // the attach is refused for it
  layout::ExchangePlan plan(*policy, layout);
  collective::Parts parts;
  parts.layout = &layout;
  parts.node = node;
  parts.kernels = leaves_.kernels;
  parts.pool = leaves_.pool;
  parts.plan = &plan;
  parts.buckets_in_flight = options_.buckets_in_flight;
  parts.batch_bytes = options_.batch_bytes;
  return collective::Collective::WindowBytes(parts);
}

const JobRuntime* Node::Find(const std::string& name) const {
  const auto it = runtimes_.find(name);
  return it == runtimes_.end() ? nullptr : it->second.get();
}

v1::JobSummary Node::Summarize(const session::LocalJob& job) const {
  v1::JobSummary summary;
  summary.set_name(job.spec().name);
  summary.set_tenant(job.spec().tenant);
  summary.set_state(std::string(session::Name(job.state())));
  summary.set_world_size(job.layout().topology().world_size());
  summary.set_num_nodes(job.layout().topology().num_nodes);
  summary.set_partition_nodes(job.layout().topology().partition_nodes);
  summary.set_num_attached(job.num_attached());
  const JobRuntime* const runtime = Find(job.spec().name);
  uint64_t bytes = job.segment_bytes();
  if (runtime != nullptr) {
    bytes += runtime->state().size_bytes();
    if (runtime->residuals() != nullptr) {
      bytes += runtime->residuals()->size_bytes();
    }
    if (runtime->gathered() != nullptr) {
      bytes += runtime->gathered()->size_bytes();
    }
    if (runtime->snapshots() != nullptr) {
      const snapshot::SnapshotStatus status = runtime->snapshots()->status();
      bytes += status.replicas.held_bytes;
      if (!status.other_life.empty()) {
        summary.set_notice(
            absl::StrCat("no snapshots are saved: ", status.other_life));
      }
    }
    summary.set_generation(runtime->generation().value());
    summary.set_open_step(runtime->engine().open_step().value());
    summary.set_weight_version(runtime->engine().weight_version().value());
    summary.set_waiting_for(runtime->WaitingFor());
  }
  if (const auto it = keeps_.find(job.spec().name); it != keeps_.end()) {
    const absl::Status held = it->second->vault()->CheckAllHeld();
    summary.set_not_kept(std::string(held.message()));
  }
  if (std::string why = sessions_->NotStored(job.spec().name); !why.empty()) {
    summary.set_notice(
        absl::StrCat("held longer than it may be, until it is "
                     "stored, which failed: ",
                     why));
  }
  summary.set_bytes(bytes);
  summary.set_admitted_bytes(sessions_->BytesOf(job.spec().name));
  return summary;
}

std::vector<v1::JobSummary> Node::Jobs() const {
  std::vector<v1::JobSummary> jobs;
  for (const session::LocalJob* job : sessions_->jobs()) {
    jobs.push_back(Summarize(*job));
  }
  return jobs;
}

absl::StatusOr<v1::GetJobReply> Node::GetJob(const std::string& name) const {
  const session::LocalJob* const job = sessions_->Find(name);
  if (job == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("there is no job ", base::Quoted(name), " on this node"));
  }
  v1::GetJobReply reply;
  *reply.mutable_summary() = Summarize(*job);
  FillWorkers(*job, &reply);
  const layout::Layout& layout = job->layout();
  reply.set_optimizer(std::string(kernels::Name(job->spec().optimizer)));
  reply.set_exchange(job->spec().exchange);
  reply.set_layout_digest(layout.digest());
  reply.set_num_tensors(static_cast<int64_t>(layout.tensors().size()));
  reply.set_num_elements(layout.total_elements());
  reply.set_num_buckets(static_cast<int32_t>(layout.buckets().size()));
  reply.set_last_failure(job->last_failure());
  FillMemory(sessions_->NeedOf(name), reply.mutable_memory());
  if (const JobRuntime* const runtime = Find(name); runtime != nullptr) {
    FillSteps(runtime->engine(), &reply);
    FillProcesses(*runtime, &reply);
    FillQuality(layout, *runtime, &reply);
    FillSnapshots(runtime->snapshots(), reply.mutable_snapshots());
    FillReplicas(runtime->snapshots(), reply.mutable_replicas());
    reply.set_steps_since_progress_ms(absl::ToInt64Milliseconds(
        leaves_.clock->Now() - runtime->last_progress()));
    reply.set_routes(runtime->routes().Describe());
    reply.set_link_bytes_per_second(
        PerSecond(runtime->routes().measured().per_byte()));
    reply.set_slowest_link_bytes_per_second(
        PerSecond(runtime->routes().cost().per_byte));
    if (runtime->gathered() != nullptr) {
      *reply.mutable_gather() = runtime->gathered()->Status();
    }
    if (runtime->peers() != nullptr) {
      for (v1::PeerNode& node : runtime->peers()->Nodes()) {
        *reply.add_nodes() = std::move(node);
      }
    }
  }
  return reply;
}

}  // namespace ballast::daemon
