// The member role as a pure function: what this node does about frames of the
// coordinator, its own wishes and the time. Frames may be lost, so whatever
// has no answer yet is repeated; repeating changes nothing at the other end.
//
//   idle --join--> joining --View--> member --vote--> voted
//                     |              ^  |  ^            |
//                  Refusal       Start  |  +-- Commit --+
//                     |              |  |  +-- Abort ---+ (next generation)
//                     |            ready<  +-- Heal ----+ (healing; then it
//                     v                                    votes again)
//                   ended <-- Leave from the coordinator, loss, timeout
//
// A Leave with `relinks`, sent or received, or made here for a coordinator that
// is silent, ends only this life: the job goes on by another one.
//
// A commit, abort or call to heal counts only for the vote that is out; all
// else is dropped.
#ifndef SERVER_MEMBERSHIP_MEMBER_H_
#define SERVER_MEMBERSHIP_MEMBER_H_

#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/membership/action.h"

namespace ballast::membership {

struct MemberOptions {
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration peer_timeout = absl::InfiniteDuration();
  absl::Duration repeat_every = absl::Seconds(2);
};

struct MemberState {
  enum class Phase {
    kIdle,
    kJoining,
    kMember,
    kReady,
    kVoted,
    kHealing,
    kLeaving,
    kEnded
  };
  Phase phase = Phase::kIdle;
  Generation generation;
  Step open_step;
  int heal_round = 0;  // of the open step
  Incarnation coordinator;
  v1::Join join;
  v1::PeerFrame unanswered;  // join, ready, vote or leave
  absl::Time repeat_at = absl::InfiniteFuture();
  absl::Time since = absl::InfinitePast();  // of `unanswered`, or of healing
  absl::Time heard = absl::InfinitePast();  // the coordinator
};

struct JoinWish {
  v1::Join join;
};
struct ReadyWish {};
struct VoteWish {
  v1::Vote vote;
};
struct LeaveWish {
  absl::Status why;
  // Not the job ends, but this life of the membership: a link is lost.
  bool relinks = false;
};
struct CoordinatorFrame {
  v1::PeerFrame frame;
};
struct MemberTick {};
using MemberEvent = std::variant<JoinWish, ReadyWish, VoteWish, LeaveWish,
                                 CoordinatorFrame, MemberTick>;

// kSend goes to the coordinator; kNotify carries view, start, commit, abort or
// leave for the observer.
Actions Decide(const MemberOptions& options, const MemberEvent& event,
               absl::Time now, MemberState* state);

std::string WaitingFor(const MemberState& state, absl::Time now);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_MEMBER_H_
