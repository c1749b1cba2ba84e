// What a simulated worker sees of the world around it; implemented by Cluster.
#ifndef TESTS_SIM_SIM_WORLD_H_
#define TESTS_SIM_SIM_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/worker/control_view.h"
#include "server/base/sim_executor.h"
#include "server/daemon/node.h"
#include "server/layout/types.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {

class SimWorker;

// One life of one rank's process.
struct WorkerId {
  int rank = 0;
  int life = 0;
  bool operator==(const WorkerId&) const = default;
};

class SimWorld {
 public:
  virtual ~SimWorld() = default;
  virtual base::SimExecutor& clock() = 0;
  virtual const Scenario& scenario() const = 0;

  // Runs on the control thread of the node's daemon; lost if it is dead.
  virtual void CallNode(int node,
                        absl::AnyInvocable<void(daemon::Node&)> fn) = 0;
  // Runs in that process; lost if it is dead.
  virtual void CallWorker(WorkerId id,
                          absl::AnyInvocable<void(SimWorker&) &&> fn) = 0;

  // Something to do at this point, once; null if there is not.
  virtual const Fault* TakeFault(Fault::Kind kind, int where, int64_t step) = 0;
  // Whether this call of the process, or the reply to it, is lost.
  virtual bool LosesCall(WorkerId id, std::string_view call, bool is_reply) = 0;
  // This process dies at the end of the event that calls this.
  virtual void Crash(WorkerId id, const Fault& fault) = 0;

  // This process has pushed its last bucket of `step`, and reads no weights any
  // more until the next version is there.
  virtual void OnAllPushed(WorkerId id, int64_t step) = 0;
  // All weights of `version` are visible to this worker; `record` is the
  // answer to the step that made them (null for the version it began with).
  virtual void OnVersion(WorkerId id, int64_t version, uint64_t hash,
                         const worker::StepResult* record) = 0;
  // A worker reads elements of a tensor in the weights, which it was told are
  // of `version`.
  virtual void OnRead(WorkerId id, int64_t version, const layout::Piece& piece,
                      std::span<const std::byte> bytes) = 0;
  virtual void OnViolation(const std::string& what) = 0;
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_WORLD_H_
