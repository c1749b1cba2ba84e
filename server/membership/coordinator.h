// The coordinator role as a pure function: what the node with the lowest rank
// decides, given all it knows, one event and the time. Nothing here sends,
// waits or reads a clock.
//
//   gathering --all joined, all equal--> open --all voted--> open (next step,
//       |                                 |                or next generation)
//       +--------- timeout, loss, leave --+--> ended
//
// Between the View of a job that begins and its first step all nodes say that
// they are ready: they have the first weights, and if their daemon dies from
// there on the next one has them too. So no worker has begun a job that a node
// can still lose by that. Nodes of an earlier version do not say it.
//
// A lost node or link ends this life of the membership, not the job (Leave
// with `relinks`): the nodes meet again, with what each of them kept of the
// job, and go on from there (rejoin.h).
//
// It decides a step once all nodes have voted, never earlier: a node that has
// voted has published the step before, so that an abort never meets a node
// that still carries out a commit.
//
// Votes whose digests differ decide nothing: the nodes are called to heal their
// weights, and vote again (v1::Heal). Their reduced gradients are good as they
// are. After kMaxHealRounds of one step the job ends with DataLoss.
//
// Commit: norm = sqrt of the exact sum of all nodes' squared norms, rounded to
// double once; clip factor = min(1, c / (norm + 1e-6)) in double, rounded to
// float once (kernels::ClipFactor); both 1-to-1 what PyTorch computes with a
// double norm. Non-finite anywhere: skipped, the norm is NaN, and the
// optimizer's own count of steps does not advance.
#ifndef SERVER_MEMBERSHIP_COORDINATOR_H_
#define SERVER_MEMBERSHIP_COORDINATOR_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/hyper_parameters.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/membership/action.h"
#include "server/membership/error_budget.h"
#include "server/membership/error_report.h"

namespace ballast::membership {

inline constexpr int kMaxHealRounds = 3;

struct CoordinatorOptions {
  int num_nodes = 1;
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  double gradient_clipping = 0;
  MeteredTensors metered = {};  // empty: no error is measured
  BudgetRules budget = {};      // of the metered tensors
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration vote_timeout = absl::InfiniteDuration();
  absl::Duration peer_timeout = absl::InfiniteDuration();
};

struct NodeState {
  std::optional<v1::Join> join;
  std::optional<v1::Vote> vote;
  bool is_ready = false;
  Incarnation incarnation;
  absl::Time heard = absl::InfinitePast();
  bool closed = false;
};

struct CoordinatorState {
  enum class Phase { kGathering, kOpen, kEnded };
  Phase phase = Phase::kGathering;
  Generation generation;
  Step open_step;
  bool awaits_ready = false;  // v1::View.awaits_ready
  bool has_started = false;   // the first step may be voted on
  int heal_round = 0;         // of the open step
  int64_t optimizer_step = 0;
  BudgetState budget;
  std::vector<NodeState> nodes;
  absl::Time deadline = absl::InfiniteFuture();  // of gathering, or of votes
  absl::Time since = absl::InfinitePast();       // first join, ready or vote
  bool is_held = false;                          // the open step waits
  std::optional<v1::Commit> to_publish;          // v1::View.commit
  std::optional<v1::Abort> to_repeat;            // v1::View.abort
  std::string rank0_cursor;                      // v1::View.rank0_cursor
  std::optional<v1::PeerFrame> last;             // recorded outcome
};

struct PeerEvent {  // a frame of `from`; `frame` names its generation
  NodeRank from;
  v1::PeerFrame frame;
};
struct TickEvent {};
// The open step is not decided until it is let go (a snapshot of the version
// before it is being announced).
struct HoldEvent {
  bool is_held = false;
};
using CoordinatorEvent = std::variant<PeerEvent, TickEvent, HoldEvent>;

CoordinatorState InitialCoordinatorState(const CoordinatorOptions& options,
                                         int64_t optimizer_step);

// Same options, state, event and time: same actions and same next state.
Actions Decide(const CoordinatorOptions& options, const CoordinatorEvent& event,
               absl::Time now, CoordinatorState* state);

// Whom the coordinator waits for, in words; empty if for nobody.
std::string WaitingFor(const CoordinatorState& state, absl::Time now);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_COORDINATOR_H_
