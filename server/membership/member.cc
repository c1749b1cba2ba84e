#include "server/membership/member.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"

namespace ballast::membership {
namespace {

using Phase = MemberState::Phase;

// The coordinator's own texts say more, so they get a head start.
constexpr absl::Duration kGrace = absl::Seconds(5);

Action Send(v1::PeerFrame frame, std::string why) {
  return {Action::Kind::kSend, std::nullopt, std::move(frame), std::move(why)};
}
Action Notify(v1::PeerFrame frame, std::string why) {
  return {Action::Kind::kNotify, std::nullopt, std::move(frame),
          std::move(why)};
}

class Decider {
 public:
  Decider(const MemberOptions& options, absl::Time now, MemberState* state)
      : options_(options), now_(now), state_(*state) {}

  Actions operator()(const JoinWish& wish) {
    if (state_.phase != Phase::kIdle) return {Drop("joined before")};
    state_.phase = Phase::kJoining;
    state_.join = wish.join;
    v1::PeerFrame frame;
    *frame.mutable_join() = wish.join;
    return Ask(std::move(frame), "the workers of this node are here");
  }

  Actions operator()(const ReadyWish&) {
    if (state_.phase != Phase::kMember) return {Drop("ready before the view")};
    state_.phase = Phase::kReady;
    v1::PeerFrame frame;
    frame.set_generation(state_.generation.value());
    frame.mutable_ready();
    return Ask(std::move(frame), "the first weights are here");
  }

  Actions operator()(const VoteWish& wish) {
    const bool is_due =
        state_.phase == Phase::kMember || state_.phase == Phase::kHealing;
    if (!is_due || wish.vote.step() != state_.open_step.value() ||
        wish.vote.heal_round() != state_.heal_round) {
      return {
          Drop(absl::StrCat("no vote on step ", wish.vote.step(), " in round ",
                            wish.vote.heal_round(), " is due"))};
    }
    state_.phase = Phase::kVoted;
    v1::PeerFrame frame;
    frame.set_generation(state_.generation.value());
    *frame.mutable_vote() = wish.vote;
    return Ask(std::move(frame), "every bucket is reduced here");
  }

  Actions operator()(const LeaveWish& wish) {
    if (state_.phase == Phase::kEnded) return {Drop("left before")};
    const bool is_alone = state_.phase == Phase::kIdle;
    v1::PeerFrame frame = LeaveFrame(wish.why);
    frame.mutable_leave()->set_relinks(wish.relinks);
    frame.set_generation(state_.generation.value());
    if (!wish.why.ok()) {
      state_.phase = Phase::kEnded;
      if (is_alone) return {};
      return {Send(std::move(frame), std::string(wish.why.message()))};
    }
    if (is_alone) return EndHere(absl::OkStatus());
    state_.phase = Phase::kLeaving;
    return Ask(std::move(frame), "the workers of this node closed the job");
  }

  Actions operator()(const CoordinatorFrame& event) {
    const v1::PeerFrame& frame = event.frame;
    if (state_.phase == Phase::kEnded || state_.phase == Phase::kIdle) {
      return {Drop("not in the job")};
    }
    if (state_.phase == Phase::kJoining) return WhileJoining(frame);
    if (Incarnation(frame.incarnation()) != state_.coordinator) {
      return {Drop("a coordinator in another life")};
    }
    state_.heard = now_;
    if (frame.has_leave()) return OnLeave(frame);
    if (frame.has_view()) return {};  // the answer to a repeated join
    if (frame.has_start() && state_.phase == Phase::kReady &&
        frame.generation() == state_.generation.value()) {
      state_.phase = Phase::kMember;
      state_.unanswered.Clear();
      return {Notify(frame, "all nodes have the first weights")};
    }
    if (state_.phase != Phase::kVoted ||
        frame.generation() != state_.generation.value()) {
      return {Drop("an outcome that is not awaited")};
    }
    if (frame.has_commit()) return OnCommit(frame);
    if (frame.has_abort()) return OnAbort(frame);
    if (frame.has_heal()) return OnHeal(frame);
    return {Drop("a frame that no member takes")};
  }

  Actions operator()(const MemberTick&) {
    if (state_.phase == Phase::kIdle || state_.phase == Phase::kEnded) {
      return {};
    }
    if (IsOverdue()) return OnOverdue();
    if (now_ < state_.repeat_at) return {};
    state_.repeat_at = now_ + options_.repeat_every;
    Actions actions;
    // While nothing is asked the repeated join says "still here", and the view
    // that answers it says the same of the coordinator.
    if (state_.phase != Phase::kJoining) {
      v1::PeerFrame beat;
      *beat.mutable_join() = state_.join;
      actions.push_back(Send(std::move(beat), "still here"));
    }
    if (state_.phase != Phase::kMember && state_.phase != Phase::kHealing) {
      actions.push_back(Send(state_.unanswered, "no answer yet"));
    }
    return actions;
  }

 private:
  Actions Ask(v1::PeerFrame frame, std::string why) {
    state_.unanswered = frame;
    state_.since = now_;
    if (state_.phase == Phase::kJoining) state_.heard = now_;
    state_.repeat_at = now_ + options_.repeat_every;
    return {Send(std::move(frame), std::move(why))};
  }

  Actions WhileJoining(const v1::PeerFrame& frame) {
    if (frame.has_refusal()) {
      return EndHere(ToStatus(frame.refusal().code(), frame.refusal().text()));
    }
    if (frame.has_leave()) return OnLeave(frame);
    if (!frame.has_view() || frame.generation() < 1 ||
        frame.generation() > proto::kMaxGeneration ||
        frame.view().open_step() < 1 ||
        frame.view().open_step() > proto::kMaxStep) {
      return {Drop("not a view to join")};
    }
    state_.phase = Phase::kMember;
    state_.heard = now_;
    state_.coordinator = Incarnation(frame.incarnation());
    state_.generation = Generation(frame.generation());
    state_.open_step = Step(frame.view().open_step());
    state_.unanswered.Clear();
    return {Notify(frame, "the first view")};
  }

  Actions OnCommit(const v1::PeerFrame& frame) {
    if (frame.commit().step() != state_.open_step.value()) {
      return {Drop("a commit of another step")};
    }
    state_.open_step = state_.open_step.next();
    state_.heal_round = 0;
    state_.phase = Phase::kMember;
    state_.unanswered.Clear();
    return {Notify(frame, "committed")};
  }

  Actions OnAbort(const v1::PeerFrame& frame) {
    if (frame.abort().step() != state_.open_step.value() ||
        frame.abort().next_generation() <= state_.generation.value() ||
        frame.abort().next_generation() > proto::kMaxGeneration) {
      return {Drop("an abort of another step")};
    }
    state_.generation = Generation(frame.abort().next_generation());
    state_.heal_round = 0;
    state_.phase = Phase::kMember;
    state_.unanswered.Clear();
    return {Notify(frame, frame.abort().text())};
  }

  // Rounds follow one another: a repeated call is that of a round gone by.
  Actions OnHeal(const v1::PeerFrame& frame) {
    if (frame.heal().step() != state_.open_step.value() ||
        frame.heal().round() != state_.heal_round + 1) {
      return {Drop("a call to heal that is not awaited")};
    }
    state_.heal_round = frame.heal().round();
    state_.phase = Phase::kHealing;
    state_.since = now_;
    state_.unanswered.Clear();
    return {Notify(frame, "the nodes show different weights")};
  }

  bool IsOverdue() const {
    if (state_.phase == Phase::kJoining) {
      return now_ - state_.since >= options_.join_timeout + kGrace;
    }
    return now_ - state_.heard >= options_.peer_timeout + kGrace;
  }

  Actions OnOverdue() {
    if (state_.phase == Phase::kJoining) {
      return EndHere(absl::DeadlineExceededError(
          absl::StrCat("node 0 (the coordinator) did not answer within ",
                       absl::FormatDuration(options_.join_timeout))));
    }
    if (state_.phase == Phase::kLeaving) return EndHere(absl::OkStatus());
    return RelinkHere(absl::UnavailableError(
        absl::StrCat("node 0 (the coordinator) has been silent for ",
                     absl::FormatDuration(
                         absl::Trunc(now_ - state_.heard, absl::Seconds(1))))));
  }

  Actions OnLeave(const v1::PeerFrame& frame) {
    const absl::Status why =
        ToStatus(frame.leave().code(), frame.leave().text());
    return frame.leave().relinks() ? RelinkHere(why) : EndHere(why);
  }

  Actions RelinkHere(const absl::Status& why) {
    state_.phase = Phase::kEnded;
    return {Notify(RelinkFrame(why), std::string(why.message()))};
  }

  Actions EndHere(const absl::Status& why) {
    state_.phase = Phase::kEnded;
    return {Notify(LeaveFrame(why), std::string(why.message()))};
  }

  const MemberOptions& options_;
  const absl::Time now_;
  MemberState& state_;
};

}  // namespace

Actions Decide(const MemberOptions& options, const MemberEvent& event,
               absl::Time now, MemberState* state) {
  return std::visit(Decider(options, now, state), event);
}

std::string WaitingFor(const MemberState& state, absl::Time now) {
  const std::string waited = absl::FormatDuration(
      absl::Trunc(now - state.since, absl::Milliseconds(100)));
  switch (state.phase) {
    case Phase::kJoining:
      return absl::StrCat("node 0 has not sent a view for ", waited);
    case Phase::kReady:
      return absl::StrCat(
          "node 0 has not said that all nodes have the first weights for ",
          waited);
    case Phase::kVoted:
      return absl::StrCat("node 0 has not decided step ",
                          state.open_step.value(), " for ", waited);
    case Phase::kHealing:
      return absl::StrCat(
          "this node has been comparing its weights with their owners' before "
          "step ",
          state.open_step.value(), " for ", waited);
    case Phase::kLeaving:
      return absl::StrCat("the other nodes have not closed the job for ",
                          waited);
    case Phase::kIdle:
    case Phase::kMember:
    case Phase::kEnded:
      return "";
  }
  return "";
}

}  // namespace ballast::membership
