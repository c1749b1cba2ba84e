#include "tests/sim/cluster.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
constexpr uint64_t kMaxEvents = 20'000'000;
constexpr size_t kMaxViolations = 20;

// A daemon's death, thrown from where it dies: nothing of the event that it was
// in happens any more.
struct Death {
  int node;
};

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
    cluster->result_.early_heals +=
        absl::StrContains(line, "found before the vote; healed with");
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

// ---- The end. ----

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
