#include "tests/sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/base/failpoint.h"
#include "server/snapshot/held_sets.h"

namespace ballast::sim {
namespace {

// Everything in a scenario happens well within this virtual time.
constexpr absl::Duration kPatience = absl::Hours(2);
// In microseconds: within which all workers start, and have mostly begun; or,
// of several nodes, which meet first, have mostly not.
constexpr uint64_t kStarting = 20'000;
constexpr uint64_t kOpening = 25'000;
// A daemon looks for another keeper each second.
constexpr absl::Duration kKeeperAway = absl::Seconds(1);
constexpr uint64_t kMaxEvents = 20'000'000;
constexpr size_t kMaxViolations = 20;

// A daemon's death, thrown from where it dies: nothing of the event that it was
// in happens any more.
struct Death {
  int node;
};

bool NeedsKeepers(const Scenario& scenario) {
  return scenario.has_keepers ||
         std::ranges::any_of(scenario.faults, [](const Fault& fault) {
           return fault.kind == Fault::Kind::kRestart ||
                  fault.kind == Fault::Kind::kKeeperDies;
         });
}

bool RestartsToBegin(const Scenario& scenario) {
  return std::any_of(
      scenario.faults.begin(), scenario.faults.end(), [](const Fault& fault) {
        return fault.kind == Fault::Kind::kRestart && fault.step == 0;
      });
}

}  // namespace

Cluster::Daemon::Daemon(Cluster* cluster, int rank)
    : life(++cluster->num_daemons_),
      process(&cluster->world_, absl::StrCat("daemon-", rank)),
      pool(&process, cluster->seeds_.Next(), /*num_threads=*/3),
      io(&process, cluster->seeds_.Next(), /*num_threads=*/2,
         /*max_delay=*/absl::Microseconds(300)),
      device({}, &process),
      random(cluster->seeds_.Next()) {
  daemon::Leaves leaves;
  leaves.clock = &cluster->world_;
  leaves.executor = &process;
  leaves.pool = &pool;
  leaves.device = &device;
  leaves.random = &random;
  leaves.kernels = &cluster->kernels_;
  leaves.warn = [cluster](const std::string& line) {
    cluster->world_.Note(line);
    cluster->result_.heals += absl::StrContains(line, "; healed with");
  };
  const Scenario& scenario = cluster->scenario_;
  if (scenario.nodes > 1 || scenario.replica_every > 0) {
    peers = std::make_unique<SimPeerPlane>(NodeRank(rank), &process,
                                           &cluster->networks_);
    leaves.peers = peers.get();
  }
  daemon::NodeOptions options;
  options.sessions.join_timeout = scenario.join_timeout;
  options.relink_timeout = scenario.relink_timeout;
  options.sessions.chunk_bytes = scenario.chunk_bytes;
  options.sessions.compute_threads = pool.num_threads();
  options.buckets_in_flight = scenario.buckets_in_flight;
  options.batch_bytes = 1;  // every chunk for itself
  options.algorithms = {.gather = scenario.gather, .reduce = scenario.reduce};
  leaves.snapshot_files = cluster->files_;
  leaves.io = &io;
  options.snapshots.every_steps = scenario.snapshot_every;
  options.replicas.every_steps = scenario.replica_every;
  node = std::make_unique<daemon::Node>(leaves, options);
  if (cluster->keepers_.empty()) return;
  SimVault& vault = cluster->keepers_[rank]->vault;
  const absl::Status taken =
      node->TakeOver({.vault = &vault,
                      .found = vault.Found(),
                      .adopt_worker =
                          [this, cluster](base::Kept worker) {
                            return cluster->AdoptWorker(node.get(), worker);
                          },
                      .drops = {}});
  // Every life has the same limits and formats.
  if (!taken.ok()) std::abort();
}

Cluster::Cluster(const Scenario& scenario, uint64_t seed,
                 const kernels::Kernels& kernels, WrapTransport wrap,
                 snapshot::FileSystem* files)
    : Cluster(scenario, seed, kernels, std::move(wrap), files, nullptr) {
  for (int n = 0; n < scenario.nodes; ++n) {
    daemons_.push_back(std::make_unique<Daemon>(this, n));
  }
}

Cluster::Cluster(const Scenario& scenario, uint64_t seed,
                 const kernels::Kernels& kernels, Cluster* earlier,
                 const std::vector<int>& from)
    : Cluster(scenario, seed, kernels, nullptr, earlier->files_, earlier) {
  for (int n = 0; n < scenario.nodes && !keepers_.empty(); ++n) {
    if (from[n] >= 0) keepers_[n] = std::move(earlier->keepers_[from[n]]);
  }
  for (int n = 0; n < scenario.nodes; ++n) {
    daemons_.push_back(from[n] < 0 ? std::make_unique<Daemon>(this, n)
                                   : Move(earlier, from[n], n));
  }
}

std::unique_ptr<Cluster::Daemon> Cluster::Move(Cluster* earlier, int from,
                                               int to) {
  std::unique_ptr<Daemon> daemon = std::move(earlier->daemons_[from]);
  daemon->peers->Use(NodeRank(to), &networks_);
  return daemon;
}

Cluster::Cluster(const Scenario& scenario, uint64_t seed,
                 const kernels::Kernels& kernels, WrapTransport wrap,
                 snapshot::FileSystem* files, Cluster* earlier)
    : scenario_(scenario),
      kernels_(kernels),
      files_(files),
      own_world_(earlier == nullptr ? std::make_unique<base::SimExecutor>(seed)
                                    : nullptr),
      world_(earlier == nullptr ? *own_world_ : earlier->world_),
      seeds_(seed ^ 0xba11a57),
      links_(&world_, seeds_.Next(), scenario.link),
      network_(&links_),
      peers_(&links_),
      networks_{.links = &links_,
                .exchanges = &network_,
                .frames = &peers_,
                .clock = &world_,
                .wrap = std::move(wrap),
                .meets_to_begin = RestartsToBegin(scenario)},
      reference_(scenario_),
      corruption_(
          this,
          [this](int node) {
            return daemons_[node] == nullptr
                       ? nullptr
                       : daemons_[node]->node->Find(kJobName);
          },
          seed ^ 0xf11b5),
      workers_(scenario.world_size()),
      lives_(scenario.world_size()),
      last_version_(scenario.world_size(), scenario.first_version - 1),
      is_fault_taken_(scenario.faults.size()) {
  if (scenario.has_interfaces) links_.ShareInterfaces(&world_);
  peers_.SetFilter(
      [this](NodeRank from, NodeRank to, const std::string& frame) {
        return CountLoss(losses_.TakeFrame(from, to, frame));
      });
  networks_.loses_poll = [this](int node, bool is_reply) {
    return CountLoss(losses_.TakePoll(node, is_reply));
  };
  for (int n = 0; NeedsKeepers(scenario) && n < scenario.nodes; ++n) {
    keepers_.push_back(std::make_unique<Keeper>());
  }
  result_.weights.resize(scenario.first_version);  // not seen here
}

Cluster::~Cluster() {
  if (away_.has_value()) base::SetDeath(nullptr);
}

void Cluster::Start() {
  ArmLosses(0);
  for (int rank = 0; rank < scenario_.world_size(); ++rank) {
    const auto& absent = scenario_.absent;
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) {
      continue;
    }
    StartWorker(rank, 0);
  }
  for (int n = 0; n < scenario_.nodes; ++n) {
    while (const Fault* const restart =
               TakeFault(Fault::Kind::kRestart, n, 0)) {
      const auto away = restart->back_after.value_or(absl::Milliseconds(20));
      world_.PostAfter(absl::Microseconds(world_.random().Below(kOpening)),
                       [this, n, away] { Restart(n, away); });
    }
  }
  if (scenario_.adopt_after == absl::InfiniteDuration()) return;
  world_.PostAfter(scenario_.adopt_after, [this] {
    CallNode(0, [this](daemon::Node& node) {
      const daemon::JobRuntime* const job = node.Find(kJobName);
      if (job == nullptr ||
          !absl::StrContains(job->WaitingFor(), "may not go on alone")) {
        return;
      }
      const absl::Status status = node.AdoptJob(kJobName);
      if (!status.ok()) {
        OnViolation(absl::StrCat("not adopted: ", status.ToString()));
      }
    });
  });
}

Result Cluster::Run() {
  Start();
  return Finish();
}

Result Cluster::Finish() {
  RunToEnd();
  CheckEnds();
  CheckNothingIsLeft();
  CheckLosses();
  AddUp();
  return result_;
}

Result Cluster::RunLife() {
  Start();
  RunToEnd();
  // What its last workers did is noticed a little later.
  world_.RunFor(absl::Seconds(2));
  CheckEnds();
  CheckLosses();
  AddUp();
  return result_;
}

int64_t Cluster::NewestHeldStep() const {
  std::vector<int> all(daemons_.size());
  std::iota(all.begin(), all.end(), 0);
  return NewestHeldStep(all);
}

snapshot::HeldFiles* Cluster::FindRemnant(int node) const {
  return daemons_[node] == nullptr
             ? nullptr
             : daemons_[node]->node->remnants().Find(kJobName);
}

int64_t Cluster::NewestHeldStep(std::span<const int> nodes) const {
  std::vector<std::vector<snapshot::HeldSet>> held(daemons_.size());
  for (const int n : nodes) {
    snapshot::HeldFiles* const files = n < 0 ? nullptr : FindRemnant(n);
    if (files != nullptr) held[n] = snapshot::ListHeld(*files, kJobName);
  }
  const auto choice = snapshot::ChooseHeld(held, {});
  return choice.has_value() ? choice->step : 0;
}

void Cluster::RunToEnd() {
  const absl::Time end = world_.Now() + kPatience;
  uint64_t events = 0;
  while (!IsOver()) {
    if (world_.Now() > end || ++events > kMaxEvents || !Step()) {
      OnViolation(
          absl::StrCat("I23: not over after ",
                       absl::FormatDuration(world_.Now() - end + kPatience),
                       " and ", events, " events"));
      break;
    }
    if (result_.violations.size() > kMaxViolations) break;
  }
  result_.virtual_time = world_.Now() - (end - kPatience);
}

void Cluster::AddUp() {
  for (int n = 0; n < scenario_.nodes; ++n) {
    result_.wire_bytes += links_.sent_bytes(NodeRank(n));
  }
  result_.trace_hash = world_.trace_hash();
}

bool Cluster::Step() {
  try {
    return world_.Step();
  } catch (const Death& death) {
    ++deaths_;
    Restart(death.node, *away_);
    return true;
  }
}

void Cluster::DieAtFailpoints(absl::Duration away) {
  away_ = away;
  networks_.meets_to_begin = true;
  base::SetDeath([this](std::string_view failpoint) { Die(failpoint); });
}

void Cluster::Die(std::string_view failpoint) {
  constexpr std::string_view kDaemon = "daemon-";
  std::string_view who = world_.running();
  int node = starting_node_;  // or it is only just being made
  if (who.starts_with(kDaemon)) {
    who.remove_prefix(kDaemon.size());
    node = std::stoi(std::string(who));
  }
  world_.Note(failpoint);
  throw Death{node};
}

void Cluster::StartWorker(int rank, int life) {
  if (daemons_[rank / scenario_.workers] == nullptr && keepers_.empty()) {
    return;  // nobody answers, ever
  }
  const WorkerId id{rank, life};
  lives_[rank] = life;
  workers_[rank] = std::make_unique<SimWorker>(this, id, seeds_.Next());
  // Processes of one job do not start together.
  workers_[rank]->process().PostAfter(
      absl::Microseconds(world_.random().Below(kStarting)),
      [worker = workers_[rank].get()] { worker->Start(); });
}

bool Cluster::IsOver() const {
  if (restarts_pending_ > 0 || num_stopped_ > 0) return false;
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker == nullptr || worker->is_done();
  });
}

// ---- Calls between processes. ----

void Cluster::CallNode(int node, absl::AnyInvocable<void(daemon::Node&)> fn) {
  if (keepers_.empty()) {
    if (daemons_[node] == nullptr) return;
    daemons_[node]->process.Post(
        [daemon = daemons_[node].get(), fn = std::move(fn)]() mutable {
          fn(*daemon->node);
        });
    return;
  }
  if (keepers_[node] == nullptr) return;  // the node is of another life now
  auto call = std::make_shared<Call>(std::move(fn));
  keepers_[node]->calls.push_back(call);
  if (daemons_[node] != nullptr) PostCall(node, std::move(call));
}

void Cluster::PostCall(int node, std::shared_ptr<Call> call) {
  daemons_[node]->process.Post([this, node, call] {
    std::erase(keepers_[node]->calls, call);
    (*call)(*daemons_[node]->node);
  });
}

void Cluster::CallWorker(WorkerId id,
                         absl::AnyInvocable<void(SimWorker&) &&> fn) {
  SimWorker* const worker = workers_[id.rank].get();
  if (worker == nullptr || worker->id() != id) return;
  worker->process().Post(
      [worker, fn = std::move(fn)]() mutable { std::move(fn)(*worker); });
}

// ---- Faults. ----

const Fault* Cluster::TakeFault(Fault::Kind kind, int where, int64_t step) {
  // A gradient that is computed again is the same.
  const bool is_of_gradient =
      kind == Fault::Kind::kNan || kind == Fault::Kind::kInfinity;
  for (size_t i = 0; i < scenario_.faults.size(); ++i) {
    const Fault& fault = scenario_.faults[i];
    if (fault.kind != kind || fault.where != where || fault.step != step) {
      continue;
    }
    if (is_fault_taken_[i]) {
      if (is_of_gradient) return &fault;
      continue;
    }
    is_fault_taken_[i] = true;
    CountFault(kind);
    return &fault;
  }
  return nullptr;
}

void Cluster::CountFault(Fault::Kind kind) {
  ++result_.faults;
  ++result_.faults_by_kind[static_cast<size_t>(kind)];
}

std::vector<const Fault*> Cluster::TakeFaults(Fault::Kind kind, int64_t step) {
  std::vector<const Fault*> taken;
  for (size_t i = 0; i < scenario_.faults.size(); ++i) {
    const Fault& fault = scenario_.faults[i];
    if (fault.kind != kind || fault.step != step || is_fault_taken_[i])
      continue;
    is_fault_taken_[i] = true;
    taken.push_back(&fault);
  }
  return taken;
}

void Cluster::Crash(WorkerId id, const Fault& fault) {
  if (fault.back_after.has_value()) {
    ++restarts_pending_;
    world_.PostAfter(*fault.back_after, [this, id] {
      --restarts_pending_;
      StartWorker(id.rank, id.life + 1);
    });
  }
  // Not from inside the process that dies.
  world_.Post([this, id] {
    const int node = id.rank / scenario_.workers;
    workers_[id.rank].reset();
    CallNode(node, [id](daemon::Node& daemon) {
      daemon.sessions().OnDisconnected(
          absl::StrCat("rank-", id.rank, "-life-", id.life),
          absl::UnavailableError("the worker died"));
    });
  });
}

void Cluster::ArmLosses(int64_t step) {
  for (const auto kind : {Fault::Kind::kLoseRequest, Fault::Kind::kLoseReply}) {
    for (const Fault* const fault : TakeFaults(kind, step)) losses_.Arm(*fault);
  }
}

bool Cluster::CountLoss(const Fault* fault) {
  if (fault == nullptr) return false;
  CountFault(fault->kind);
  return true;
}

bool Cluster::LosesCall(WorkerId id, std::string_view call, bool is_reply) {
  return CountLoss(losses_.TakeCall(id.rank, call, is_reply));
}

void Cluster::CloseLinks(int node, const absl::Status& why) {
  for (int l = 0; l < scenario_.workers; ++l) {
    SimWorker* const worker = workers_[node * scenario_.workers + l].get();
    if (worker == nullptr) continue;
    CallWorker(worker->id(),
               [why](SimWorker& alive) { alive.OnLinkClosed(why); });
  }
}

void Cluster::Kill(int node) {
  daemons_[node].reset();
  networks_.stopped.erase(node);
  if (keepers_.empty() || !keepers_[node]->vault.OnDaemonDied()) return;
  keepers_[node]->calls.clear();
  CloseLinks(node, absl::UnavailableError("the daemon and its keeper died"));
}

void Cluster::KillKeeper(int node, absl::Duration back_after) {
  CountFault(Fault::Kind::kKeeperDies);
  const bool has_daemon = daemons_[node] != nullptr;
  Keeper* const keeper = keepers_[node].get();
  keeper->vault.OnKeeperDied(has_daemon);
  if (!has_daemon) Kill(node);
  world_.PostAfter(back_after, [keeper] { keeper->vault.OnKeeperBack(); });
}

void Cluster::Stop(const Fault& fault) {
  if (fault.is_node) {
    StopNode(fault.where, *fault.back_after);
  } else {
    StopRank(fault.where, *fault.back_after);
  }
}

// The longest of several stops counts. A process that is killed meanwhile does
// not go on, and the next one of its kind is not stopped.
void Cluster::StopNode(int node, absl::Duration back_after) {
  if (daemons_[node] == nullptr) return;
  CountFault(Fault::Kind::kStop);
  Daemon& daemon = *daemons_[node];
  daemon.process.Pause();
  daemon.stopped_until =
      std::max(daemon.stopped_until, world_.Now() + back_after);
  networks_.stopped.insert(node);
  ++num_stopped_;
  world_.PostAfter(back_after, [this, node, life = daemon.life] {
    --num_stopped_;
    Daemon* const stopped = daemons_[node].get();
    if (stopped == nullptr || stopped->life != life ||
        world_.Now() < stopped->stopped_until) {
      return;
    }
    stopped->process.Resume();
    networks_.stopped.erase(node);
  });
}

void Cluster::StopRank(int rank, absl::Duration back_after) {
  if (workers_[rank] == nullptr || workers_[rank]->is_done()) return;
  CountFault(Fault::Kind::kStop);
  workers_[rank]->StopUntil(world_.Now() + back_after);
  ++num_stopped_;
  world_.PostAfter(back_after, [this, id = workers_[rank]->id()] {
    --num_stopped_;
    SimWorker* const worker = workers_[id.rank].get();
    if (worker != nullptr && worker->id() == id) worker->GoOnIfDue();
  });
}

void Cluster::Restart(int node, absl::Duration away) {
  Kill(node);
  world_.Note(absl::StrCat("the daemon of node ", node, " has gone"));
  ++restarts_pending_;
  world_.PostAfter(away, [this, node] {
    --restarts_pending_;
    Kill(node);  // if it was struck twice
    starting_node_ = node;
    std::vector<WorkerId> unanswered;
    for (int l = 0; l < scenario_.workers; ++l) {
      const SimWorker* const worker =
          workers_[node * scenario_.workers + l].get();
      if (worker != nullptr && worker->is_answer_due()) {
        unanswered.push_back(worker->id());
      }
    }
    daemons_[node] = std::make_unique<Daemon>(this, node);
    for (const auto& call : keepers_[node]->calls) PostCall(node, call);
    for (const WorkerId id : unanswered) {
      CallWorker(id, [](SimWorker& worker) { worker.OnDaemonBack(); });
    }
  });
}

void Cluster::KillNow(int node, absl::Duration away, bool freezes) {
  if (freezes) keepers_[node]->vault.Freeze();
  daemons_[node]->process.Pause();
  // Not from inside the process that dies.
  world_.Post([this, node, away] { Restart(node, away); });
}

absl::StatusOr<std::string> Cluster::AdoptWorker(daemon::Node* node,
                                                 const base::Kept& worker) {
  const auto note = SimWorkerNote::FromText(worker.note);
  const std::string key = note.key();
  node->sessions().OnConnected(key, AdoptSimLink(this, note));
  const SimWorker* const alive = workers_[note.id.rank].get();
  if (alive == nullptr || alive->id() != note.id) {
    // As its pidfd would say.
    CallNode(note.id.rank / scenario_.workers, [key](daemon::Node& daemon) {
      daemon.sessions().OnDisconnected(
          key, absl::UnavailableError("the worker process exited"));
    });
  }
  return key;
}

// Faults of daemons and links, when the first rank computes their step.
void Cluster::ActOnVersion(int64_t version) {
  for (const Fault* const stop : TakeFaults(Fault::Kind::kStop, version + 1)) {
    world_.PostAfter(stop->after, [this, stop] { Stop(*stop); });
  }
  for (const Fault* const death :
       TakeFaults(Fault::Kind::kKeeperDies, version + 1)) {
    world_.PostAfter(death->after, [this, death] {
      KillKeeper(death->where, death->back_after.value_or(kKeeperAway));
    });
  }
  ArmLosses(version + 1);
  for (int n = 0; n < scenario_.nodes; ++n) {
    if (TakeFault(Fault::Kind::kDaemonDies, n, version + 1) != nullptr) {
      world_.Post([this, n] {
        Kill(n);
        CloseLinks(n, absl::UnavailableError("the daemon died"));
      });
    }
    if (const Fault* const restart =
            TakeFault(Fault::Kind::kRestart, n, version + 1)) {
      // At any moment of the step.
      const auto away = restart->back_after.value_or(absl::Milliseconds(20));
      world_.PostAfter(absl::Microseconds(world_.random().Below(4000)),
                       [this, n, away] { Restart(n, away); });
    }
    const Fault* const cut = TakeFault(Fault::Kind::kPartition, n, version + 1);
    if (cut == nullptr) continue;
    for (int other = 0; other < scenario_.nodes; ++other) {
      if (other != n) links_.Partition(NodeRank(n), NodeRank(other));
    }
    if (cut->back_after.has_value()) {
      world_.PostAfter(*cut->back_after, [this] { links_.HealAll(); });
    }
  }
}

// ---- Checks. ----

void Cluster::OnViolation(const std::string& what) {
  result_.violations.push_back(what);
}

void Cluster::OnAllPushed(WorkerId id, int64_t step) {
  corruption_.OnAllPushed(id, step);
}

void Cluster::OnVersion(WorkerId id, int64_t version, uint64_t hash,
                        const worker::StepResult* record) {
  world_.Note(
      absl::StrFormat("rank %d version %d weights %x", id.rank, version, hash));
  const int64_t last = last_version_[id.rank];
  last_version_[id.rank] = version;
  const bool is_next = version == last + 1 || (id.life > 0 && version == last);
  if (!is_next) {
    OnViolation(absl::StrCat("I19: rank ", id.rank, " sees version ", version,
                             " after ", last));
  }
  if (hash != reference_.WeightsHash(version)) {
    OnViolation(absl::StrCat("I25: rank ", id.rank, " version ", version,
                             " is not the reference model's"));
  }
  if (static_cast<int64_t>(result_.weights.size()) == version) {
    result_.weights.push_back(hash);
    ActOnVersion(version);
  } else if (version < static_cast<int64_t>(result_.weights.size()) &&
             result_.weights[version] != hash) {
    OnViolation(absl::StrCat("I25: rank ", id.rank, " version ", version,
                             " differs from another rank's"));
  }
  if (record != nullptr) {
    const bool is_skipped = reference_.WasSkipped(version);
    if (record->step != version || record->skipped != is_skipped ||
        record->weight_version != version ||
        (!is_skipped && record->grad_norm != reference_.GradNorm(version))) {
      OnViolation(absl::StrFormat(
          "I15: rank %d, the record of step %d says step %d, skipped %d, norm "
          "%.17g instead of %.17g",
          id.rank, version, record->step, record->skipped, record->grad_norm,
          reference_.GradNorm(version)));
    }
    // What an earlier life sent to make the stored weights, this one does not
    // know.
    const bool is_known =
        scenario_.first_version == 0 || version > scenario_.first_version + 1;
    if ((is_known &&
         record->relative_error != reference_.RelativeError(version)) ||
        record->fallbacks < reference_.Fallbacks(version) ||
        (result_.heals == 0 &&  // they count too, on the node that healed
         record->fallbacks != reference_.Fallbacks(version))) {
      OnViolation(absl::StrFormat(
          "I21: rank %d, the record of step %d says a relative error of %.17g "
          "and %d fallbacks instead of %.17g and %d",
          id.rank, version, record->relative_error, record->fallbacks,
          reference_.RelativeError(version), reference_.Fallbacks(version)));
    }
  }
  const int node = id.rank / scenario_.workers;
  // With overlap the next gradient may be there already.
  const auto is_bad = [this](int64_t step) {
    return reference_.WasSkipped(step) || scenario_.loads.contains(step);
  };
  const bool is_next_bad =
      scenario_.overlap && version < scenario_.steps && is_bad(version + 1);
  if (version > scenario_.first_version && !is_bad(version) && !is_next_bad &&
      ones_checked_.insert({node, version}).second) {
    CheckOnes(node, version);
  }
  if (!is_ownership_checked_) CheckOwnership();
  CheckResident();
}

// What is gathered never takes more than it may, and the way back is known.
void Cluster::CheckResident() {
  for (size_t n = 0; n < daemons_.size(); ++n) {
    if (daemons_[n] == nullptr) continue;
    const daemon::JobRuntime* const runtime = daemons_[n]->node->Find(kJobName);
    if (runtime == nullptr || runtime->gathered() == nullptr) continue;
    const v1::GatherStatus status = runtime->gathered()->Status();
    if (status.limit_bytes() > 0 &&
        status.resident_bytes() > status.limit_bytes()) {
      OnViolation(absl::StrCat("node ", n, " holds ", status.resident_bytes(),
                               " bytes of weights, ", status.limit_bytes(),
                               " are allowed"));
    }
  }
}

void Cluster::OnRead(WorkerId id, int64_t version, const layout::Piece& piece,
                     std::span<const std::byte> bytes) {
  ++result_.reads;
  const std::span<const std::byte> expected =
      reference_.Weights(version, piece.tensor)
          .subspan(bytes.size() / piece.size() * piece.begin, bytes.size());
  if (std::equal(bytes.begin(), bytes.end(), expected.begin())) return;
  OnViolation(absl::StrCat("I1: rank ", id.rank, " was told of version ",
                           version, " of tensor ", piece.tensor.value(),
                           " and reads something else"));
}

void Cluster::CheckOwnership() {
  if (daemons_[0] == nullptr) return;
  const daemon::JobRuntime* const runtime = daemons_[0]->node->Find(kJobName);
  if (runtime == nullptr) return;
  is_ownership_checked_ = true;
  const layout::Layout& layout = runtime->job().layout();
  std::vector<std::vector<int>> owners;
  for (const layout::TensorPlace& place : layout.places()) {
    owners.emplace_back(place.num_elements);
  }
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          ++owners[piece.tensor.value()][i];
        }
      }
    }
  }
  for (size_t t = 0; t < owners.size(); ++t) {
    const int expected = layout.tensors()[t].trainable ? 1 : 0;
    for (const int count : owners[t]) {
      if (count == expected) continue;
      OnViolation(absl::StrCat("I14: an element of \"",
                               layout.tensors()[t].name, "\" has ", count,
                               " owners"));
      break;
    }
  }
}

// Until a worker of the node that has not seen the version pushes again, the
// node's reduced gradient is that of the version.
void Cluster::CheckOnes(int node, int64_t version) {
  if (daemons_[node] == nullptr) return;
  const daemon::JobRuntime* const runtime =
      daemons_[node]->node->Find(kJobName);
  if (runtime == nullptr) return;
  if (runtime->engine().counts().strays != 0) {
    OnViolation(absl::StrCat("I19: node ", node, " has ",
                             runtime->engine().counts().strays,
                             " stray events"));
  }
  const layout::Layout& layout = runtime->job().layout();
  const std::span<const float> gradient = runtime->state().gradient();
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Piece& piece :
         layout.shard(bucket.id, NodeRank(node)).pieces) {
      if (!absl::StartsWith(layout.tensor(piece.tensor).name, "ones")) {
        continue;
      }
      for (int64_t i = 0; i < piece.size(); ++i) {
        const float one = gradient[piece.state_offset + i];
        if (absl::StartsWith(scenario_.exchange, "exact")
                ? one == 1.0f
                : std::fabs(one - 1.0f) <= 2e-6f) {
          continue;
        }
        OnViolation(absl::StrCat("I6: the mean of ones is ",
                                 gradient[piece.state_offset + i],
                                 " at version ", version));
        return;
      }
    }
  }
}

bool Cluster::IsExpected(const absl::Status& outcome) const {
  const std::vector<std::string> texts =
      absl::StrSplit(scenario_.expect_failure, " or ");
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return absl::StrContains(std::string(outcome.message()), text);
  });
}

void Cluster::CheckEnds() {
  if (corruption_.num_waiting() > 0) {
    OnViolation(
        absl::StrCat(corruption_.num_waiting(), " bits have not flipped"));
  }
  const int missed = corruption_.num_missed();
  result_.faults -= missed;
  result_.faults_by_kind[static_cast<size_t>(Fault::Kind::kCorrupt)] -= missed;
  for (int rank = 0; rank < scenario_.world_size(); ++rank) {
    const SimWorker* const worker = workers_[rank].get();
    if (worker == nullptr) continue;
    result_.aborts += worker->aborts();
    if (daemons_[rank / scenario_.workers] == nullptr) continue;
    const absl::Status& outcome = worker->outcome();
    if (scenario_.expect_failure.empty()) {
      if (!outcome.ok()) {
        OnViolation(
            absl::StrCat("rank ", rank, " ended with ", outcome.ToString()));
      } else if (last_version_[rank] != scenario_.steps) {
        OnViolation(absl::StrCat("rank ", rank, " ended at version ",
                                 last_version_[rank]));
      }
    } else if (!IsExpected(outcome)) {
      OnViolation(absl::StrCat("I23: rank ", rank, " ended with ",
                               outcome.ToString(), ", which does not say \"",
                               scenario_.expect_failure, "\""));
    }
  }
}

void Cluster::CheckLosses() {
  for (const Fault* const fault : losses_.Missed()) {
    OnViolation(absl::StrCat("there was no ", fault->what, " of ",
                             fault->is_node ? "node " : "rank ", fault->where,
                             " to lose"));
  }
}

void Cluster::CheckNothingIsLeft() {
  links_.HealAll();
  uint64_t events = 0;
  while (Step()) {
    if (++events < kMaxEvents) continue;
    OnViolation("I28: there is no end of events");
    break;
  }
  for (size_t n = 0; n < keepers_.size(); ++n) {
    for (const auto& [name, item] : keepers_[n]->vault.items()) {
      OnViolation(absl::StrCat("I28: node ", n, " still keeps ", name));
    }
  }
  for (size_t n = 0; n < daemons_.size(); ++n) {
    if (daemons_[n] == nullptr) continue;
    Daemon& daemon = *daemons_[n];
    if (!daemon.node->is_empty() || !daemon.node->sessions().jobs().empty()) {
      OnViolation(absl::StrCat("I28: node ", n, " still has a job"));
    }
    const uint64_t bytes = daemon.device.shared_bytes_in_use() +
                           daemon.device.private_bytes_in_use();
    if (bytes != 0) {
      OnViolation(
          absl::StrCat("I28: node ", n, " still holds ", bytes, " bytes"));
    }
    if (!daemon.node->remnants().is_empty()) {
      OnViolation(absl::StrCat("I28: node ", n, " still holds replicas"));
    }
  }
}

}  // namespace ballast::sim
