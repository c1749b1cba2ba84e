// Cluster's side that does what the scenario says: deaths, stops, cuts, losses.
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace ballast::sim {
namespace {

// A daemon looks for another keeper each second.
constexpr absl::Duration kKeeperAway = absl::Seconds(1);

}  // namespace

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

}  // namespace ballast::sim
