// Who is in a job, and what became of each step: the member role of every
// node and, on the lowest node rank, the coordinator role. Decisions are pure
// functions of (state, event, time); this class feeds them with frames and
// timers and carries out what they decide.
//
//   node      Join ------------->  coordinator   all nodes here, all equal?
//             <-------------- View (generation, open step)   or Refusal
//             Ready ------------>                all have the first weights?
//             <------------- Start
//             Vote ------------->                all voted: norm, clip, skip
//             <------------ Commit | Abort (recorded before it is sent)
//             <------------ Heal   (other weights: mended, then voted again)
//
// A node whose Join says that it goes on brings what it kept of the job; the
// View then says what becomes of the last step (rejoin.h).
//
// Only the coordinator aborts, and never after a commit. Every wait is
// bounded and has a reason (I23). Frames of another generation or incarnation
// are dropped and counted.
//
// Threading: control thread only. Observer calls never come from within a call
// of the same node, except Join, CastVote and Leave with nobody to ask; an
// observer must not delete this object from within a callback.
#ifndef SERVER_MEMBERSHIP_MEMBERSHIP_H_
#define SERVER_MEMBERSHIP_MEMBERSHIP_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/hyper_parameters.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/membership/error_budget.h"
#include "server/membership/error_report.h"
#include "server/membership/outcome_log.h"

namespace ballast::membership {

class MembershipObserver {
 public:
  virtual ~MembershipObserver() = default;
  virtual void OnView(Generation generation, const v1::View& view) = 0;
  // All nodes are Ready; follows where the view awaits that.
  virtual void OnStart() = 0;
  virtual void OnCommit(const v1::Commit& commit) = 0;
  virtual void OnAbort(const v1::Abort& abort) = 0;
  // The nodes show different weights: this one compares its own with their
  // owners' and votes again, with `heal.round` in its vote.
  virtual void OnHeal(const v1::Heal& heal) = 0;
  // The job cannot go on here; called once, nothing follows.
  virtual void OnEnded(absl::Status why) = 0;
  // A node is silent or has lost a link (which, in words): the job can go on,
  // by another Membership over new links. Likewise called once, instead.
  virtual void OnLost(absl::Status why) = 0;
};

// Towards the other nodes: frames, in order per pair, possibly lost.
// `server/daemon` puts them on a transport::PeerLink (same layer as this).
class FramePort {
 public:
  virtual ~FramePort() = default;
  virtual void Send(NodeRank to, const v1::PeerFrame& frame) = 0;
};

struct Parts {
  std::string job;
  NodeRank node;
  int num_nodes = 1;
  Incarnation incarnation;  // of this life of the job on this node
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  double gradient_clipping = 0;  // 0: off
  int64_t optimizer_step = 0;    // at start; carried on by the coordinator
  MeteredTensors metered = {};   // whose errors the votes carry
  BudgetRules budget = {};       // of the same tensors
  absl::Duration join_timeout = absl::InfiniteDuration();
  // Infinite: a slow worker only delays.
  absl::Duration vote_timeout = absl::InfiniteDuration();
  // Silence after which a node counts as lost.
  absl::Duration peer_timeout = absl::InfiniteDuration();
  const base::Clock* clock = nullptr;
  base::Executor* executor = nullptr;
  FramePort* link = nullptr;       // null with one node
  OutcomeLog* outcomes = nullptr;  // null: kept in memory by this object
  MembershipObserver* observer = nullptr;
};

class Membership {
 public:
  static std::unique_ptr<Membership> Create(const Parts& parts);
  virtual ~Membership() = default;

  virtual void Join(const v1::Join& join) = 0;
  // Once, after a view that awaits it: the first weights are here, and outlive
  // this daemon where a keeper does.
  virtual void Ready() = 0;
  virtual void CastVote(const v1::Vote& vote) = 0;
  // This node's part ends. OK: its workers closed the job; OnEnded follows when
  // those of all nodes did. An error ends the job everywhere else at once, and
  // here without a further call.
  virtual void Leave(absl::Status why) = 0;
  // This node has lost a link: its life here ends, and the other nodes hear why
  // (OnLost). No call follows.
  virtual void Relink(absl::Status why) = 0;
  virtual void OnFrame(NodeRank from, const v1::PeerFrame& frame) = 0;

  // Node 0: the open step, which is neither committed nor aborted before
  // ReleaseSteps. FailedPrecondition elsewhere, before the view, and at the
  // end.
  virtual absl::StatusOr<Step> HoldSteps() = 0;
  virtual void ReleaseSteps() = 0;

  // Node 0: what the error budget has made of the metered tensors. Restored
  // before Join, from a stored state; elsewhere it is empty and nothing is.
  virtual BudgetState budget() const = 0;
  virtual void RestoreBudget(BudgetState state) = 0;

  virtual Generation generation() const = 0;
  // Late, repeated or foreign frames that changed nothing.
  virtual int64_t dropped_frames() const = 0;
  // Whom this node waits for, in words; empty if for nobody.
  virtual std::string WaitingFor() const = 0;
};

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_MEMBERSHIP_H_
