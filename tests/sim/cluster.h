// A whole job in one process and virtual time: N daemons (daemon::Node, as in
// ballastd), their workers, the network between them, and the checks that
// always run:
//
//   I1   what a worker reads of a bucket is the version it was told of, from
//        that moment to its next push
//   I6   the mean of ones is exactly one
//   I14  every element has exactly one owner
//   I19  every rank sees every version once and in order; no stray events
//   I20  whatever happened, the weights are those of the run without faults
//   I25  all ranks see the same bits, those of the reference model
//   I28  at the end no daemon holds a byte, a job or a pending event
//
// Threading: one thread; everything is an event of one SimExecutor.
#ifndef TESTS_SIM_CLUSTER_H_
#define TESTS_SIM_CLUSTER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/kernels.h"
#include "server/base/random.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/vault.h"
#include "server/daemon/node.h"
#include "server/device/host/host_device.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/held_files.h"
#include "server/transport/inproc/inproc_peer_link.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "tests/sim/corruption.h"
#include "tests/sim/losses.h"
#include "tests/sim/reference_model.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_peer_plane.h"
#include "tests/sim/sim_vault.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/sim_world.h"

namespace ballast::sim {

struct Result {
  std::vector<std::string> violations;  // empty: passed
  uint64_t trace_hash = 0;
  std::vector<uint64_t> weights;  // hash by version, as the workers saw them
  int faults = 0;                 // that really happened
  std::array<int, Fault::kNumKinds> faults_by_kind{};
  int aborts = 0;
  uint64_t wire_bytes = 0;   // between nodes
  uint64_t heals = 0;        // of chunks, on all nodes
  uint64_t early_heals = 0;  // of them those before the step's vote
  int64_t reads = 0;         // of pieces, each compared bit for bit
  absl::Duration virtual_time;

  bool passed() const { return violations.empty(); }
};

class Cluster final : public SimWorld {
 public:
  // `kernels`, `wrap`: a broken table or transport is a negative control; the
  // reference model always uses the scalar reference. `files`: where the nodes
  // keep snapshots; null: they keep none.
  Cluster(const Scenario& scenario, uint64_t seed,
          const kernels::Kernels& kernels, WrapTransport wrap = nullptr,
          snapshot::FileSystem* files = nullptr);
  // The next life of the job, in the same world: node n of it is the daemon
  // that was node from[n] of `earlier`, which outlives this, with all that it
  // holds; -1: a new one.
  Cluster(const Scenario& scenario, uint64_t seed,
          const kernels::Kernels& kernels, Cluster* earlier,
          const std::vector<int>& from);
  ~Cluster() override;

  Result Run();  // Start and Finish
  // Start, and what follows to the end of the job; another life follows.
  Result RunLife();
  // What a node holds of the job, which has ended there; null: nothing.
  snapshot::HeldFiles* FindRemnant(int node) const;
  // Of these nodes (or all), if they are there: the step that the next life
  // goes on from.
  int64_t NewestHeldStep(std::span<const int> nodes) const;
  int64_t NewestHeldStep() const;

  // For tests that look at a job on its way: then clock().RunFor(…).
  void Start();
  Result Finish();  // all that follows
  const Result& so_far() const { return result_; }
  daemon::Node& node(int rank) { return *daemons_[rank]->node; }
  bool has_node(int rank) const { return daemons_[rank] != nullptr; }
  transport::InprocPeerNetwork& frames() { return peers_; }
  // What outlives the node's daemon. Where there is a keeper.
  SimVault& vault(int node) { return keepers_[node]->vault; }
  // The daemon dies at this instruction of its own, and the next one goes on
  // after `away`. Where there is a keeper.
  // freezes: what it kept is as it was at this instruction.
  void KillNow(int node, absl::Duration away, bool freezes = true);

  // A failpoint that kills (the test has configured it) ends the daemon at that
  // very instruction, and the next one goes on after `away`. Of several nodes
  // from the job's first step on. Where there is a keeper.
  void DieAtFailpoints(absl::Duration away);
  int deaths() const { return deaths_; }  // so far

  // SimWorld
  base::SimExecutor& clock() override { return world_; }
  const Scenario& scenario() const override { return scenario_; }
  void CallNode(int node, absl::AnyInvocable<void(daemon::Node&)> fn) override;
  void CallWorker(WorkerId id,
                  absl::AnyInvocable<void(SimWorker&) &&> fn) override;
  const Fault* TakeFault(Fault::Kind kind, int where, int64_t step) override;
  bool LosesCall(WorkerId id, std::string_view call, bool is_reply) override;
  void Crash(WorkerId id, const Fault& fault) override;
  void OnAllPushed(WorkerId id, int64_t step) override;
  void OnVersion(WorkerId id, int64_t version, uint64_t hash,
                 const worker::StepResult* record) override;
  void OnRead(WorkerId id, int64_t version, const layout::Piece& piece,
              std::span<const std::byte> bytes) override;
  void OnViolation(const std::string& what) override;

 private:
  // A call of a worker, which makes it again if the daemon is replaced before
  // it came to it.
  using Call = absl::AnyInvocable<void(daemon::Node&)>;
  // What outlives a node's daemon, where there is a keeper.
  struct Keeper {
    SimVault vault;
    std::deque<std::shared_ptr<Call>> calls;  // not yet run
  };

  struct Daemon {
    Daemon(Cluster* cluster, int rank);
    const int life;  // of all daemons
    absl::Time stopped_until = absl::InfinitePast();
    // Members go in reverse order: a crash. Nothing runs in between.
    base::SimProcess process;
    base::SimComputePool pool;
    base::SimComputePool io;
    device::HostDevice device;
    base::SeededRandom random;
    std::unique_ptr<SimPeerPlane> peers;
    std::unique_ptr<daemon::Node> node;
  };

  bool Step();
  void Die(std::string_view failpoint);
  Cluster(const Scenario& scenario, uint64_t seed,
          const kernels::Kernels& kernels, WrapTransport wrap,
          snapshot::FileSystem* files, Cluster* earlier);
  std::unique_ptr<Daemon> Move(Cluster* earlier, int from, int to);
  void RunToEnd();
  void AddUp();
  void StartWorker(int rank, int life);
  // Faults of a step that strike by themselves, once.
  std::vector<const Fault*> TakeFaults(Fault::Kind kind, int64_t step);
  void CountFault(Fault::Kind kind);
  void ArmLosses(int64_t step);
  bool CountLoss(const Fault* fault);
  void Kill(int node);
  void Restart(int node, absl::Duration away);
  void KillKeeper(int node, absl::Duration back_after);
  // The other ends of the node's sockets are closed.
  void CloseLinks(int node, const absl::Status& why);
  void Stop(const Fault& fault);
  void StopNode(int node, absl::Duration back_after);
  void StopRank(int rank, absl::Duration back_after);
  void PostCall(int node, std::shared_ptr<Call> call);
  absl::StatusOr<std::string> AdoptWorker(daemon::Node* node,
                                          const base::Kept& worker);
  bool IsOver() const;
  void ActOnVersion(int64_t version);
  void CheckOwnership();
  void CheckQuality(WorkerId id, int64_t version, bool is_known,
                    const worker::StepResult& record);
  void CheckResident();
  void CheckOnes(int node, int64_t version);
  bool IsExpected(const absl::Status& outcome) const;
  void CheckEnds();
  void CheckLosses();
  void CheckNothingIsLeft();

  const Scenario scenario_;
  const kernels::Kernels& kernels_;
  snapshot::FileSystem* const files_;
  const std::unique_ptr<base::SimExecutor>
      own_world_;  // null: an earlier one's
  base::SimExecutor& world_;
  base::SeededRandom seeds_;
  transport::LinkModel links_;
  transport::InprocNetwork network_;
  transport::InprocPeerNetwork peers_;
  SimNetworks networks_;
  ReferenceModel reference_;
  Corruption corruption_;
  Losses losses_;
  // By node; empty: there are no keepers.
  std::vector<std::unique_ptr<Keeper>> keepers_;
  std::vector<std::unique_ptr<Daemon>> daemons_;     // null: dead
  std::vector<std::unique_ptr<SimWorker>> workers_;  // by rank; null: dead
  std::vector<int> lives_;                           // by rank
  std::vector<int64_t> last_version_;                // by rank
  std::vector<bool> is_fault_taken_;
  std::set<std::pair<int, int64_t>> ones_checked_;  // node, version
  bool is_ownership_checked_ = false;
  int restarts_pending_ = 0;
  int num_stopped_ = 0;                 // processes
  int num_daemons_ = 0;                 // made so far
  int starting_node_ = 0;               // the last one whose daemon was started
  std::optional<absl::Duration> away_;  // DieAtFailpoints
  int deaths_ = 0;
  Result result_;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_CLUSTER_H_
