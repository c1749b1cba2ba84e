#include "server/membership/coordinator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/control_block.h"
#include "server/membership/join_rules.h"
#include "server/membership/rejoin.h"
#include "server/membership/step_decision.h"

namespace ballast::membership {
namespace {

using Phase = CoordinatorState::Phase;

Action SendToAll(v1::PeerFrame frame, std::string why) {
  return {Action::Kind::kSend, std::nullopt, std::move(frame), std::move(why)};
}
Action SendTo(NodeRank to, v1::PeerFrame frame, std::string why) {
  return {Action::Kind::kSend, to, std::move(frame), std::move(why)};
}

// A number of a peer that makes no sense counts as none.
double Worst(double a, double b) { return std::isfinite(b) && b > a ? b : a; }

v1::LinkCost WorstLinkCost(const CoordinatorState& state) {
  v1::LinkCost worst;
  for (const NodeState& node : state.nodes) {
    if (!node.join.has_value()) continue;
    const v1::LinkCost& cost = node.join->link_cost();
    worst.set_latency(Worst(worst.latency(), cost.latency()));
    worst.set_per_message(Worst(worst.per_message(), cost.per_message()));
    worst.set_per_byte(Worst(worst.per_byte(), cost.per_byte()));
    worst.set_per_copied_byte(
        Worst(worst.per_copied_byte(), cost.per_copied_byte()));
  }
  return worst;
}

v1::PeerFrame ViewFrame(const CoordinatorState& state) {
  v1::PeerFrame frame;
  frame.set_generation(state.generation.value());
  for (size_t n = 0; n < state.nodes.size(); ++n) {
    frame.mutable_view()->add_nodes(static_cast<int>(n));
  }
  frame.mutable_view()->set_open_step(state.open_step.value());
  *frame.mutable_view()->mutable_link_cost() = WorstLinkCost(state);
  if (state.to_publish.has_value()) {
    *frame.mutable_view()->mutable_commit() = *state.to_publish;
  }
  if (state.to_repeat.has_value()) {
    *frame.mutable_view()->mutable_abort() = *state.to_repeat;
  }
  frame.mutable_view()->set_rank0_cursor(state.rank0_cursor);
  frame.mutable_view()->set_awaits_ready(state.awaits_ready);
  return frame;
}

v1::PeerFrame StartFrame(const CoordinatorState& state) {
  v1::PeerFrame frame;
  frame.set_generation(state.generation.value());
  frame.mutable_start();
  return frame;
}

v1::PeerFrame HealFrame(const CoordinatorState& state) {
  v1::PeerFrame frame;
  frame.set_generation(state.generation.value());
  frame.mutable_heal()->set_step(state.open_step.value());
  frame.mutable_heal()->set_round(state.heal_round);
  return frame;
}

// Ends the job everywhere.
Actions End(const absl::Status& why, CoordinatorState* state) {
  state->phase = Phase::kEnded;
  return {SendToAll(LeaveFrame(why), std::string(why.message()))};
}

// Ends this life of the membership: the nodes meet again.
Actions Relink(const absl::Status& why, CoordinatorState* state) {
  state->phase = Phase::kEnded;
  return {SendToAll(RelinkFrame(why), std::string(why.message()))};
}

std::string NodeList(const CoordinatorState& state,
                     bool (*is_missing)(const NodeState&)) {
  std::vector<std::string> names;
  for (size_t n = 0; n < state.nodes.size(); ++n) {
    if (is_missing(state.nodes[n])) names.push_back(absl::StrCat("node ", n));
  }
  return absl::StrJoin(names, ", ");
}
bool HasNotJoined(const NodeState& node) { return !node.join.has_value(); }
bool IsNotReady(const NodeState& node) { return !node.is_ready; }
bool HasNotVoted(const NodeState& node) { return !node.vote.has_value(); }
bool HasClosed(const NodeState& node) { return node.closed; }

class Decider {
 public:
  Decider(const CoordinatorOptions& options, absl::Time now,
          CoordinatorState* state)
      : options_(options), now_(now), state_(*state) {}

  Actions OnPeer(const PeerEvent& event) {
    const int from = event.from.value();
    if (from < 0 || from >= options_.num_nodes) {
      return {Drop(absl::StrCat("node ", from, " is not of this job"))};
    }
    if (state_.phase == Phase::kEnded) return {Drop("the job has ended")};
    const Incarnation incarnation(event.frame.incarnation());
    if (event.frame.has_join()) {
      return OnJoin(event.from, incarnation, event.frame.join());
    }
    NodeState& node = state_.nodes[from];
    if (!node.join.has_value() || node.incarnation != incarnation) {
      return {Drop(absl::StrCat("node ", from, " in another life"))};
    }
    node.heard = now_;
    if (event.frame.has_ready()) return OnReady(event.from, event.frame);
    if (event.frame.has_vote()) return OnVote(event.from, event.frame);
    if (event.frame.has_leave()) return OnLeave(event.from, event.frame);
    return {Drop("a frame that no coordinator takes")};
  }

  Actions OnHold(const HoldEvent& event) {
    state_.is_held = event.is_held;
    if (state_.phase != Phase::kOpen) return {};
    return DecideIfDue();
  }

  Actions OnTick() {
    if (state_.phase == Phase::kEnded) return {};
    if (now_ >= state_.deadline) return OnDeadline();
    if (state_.phase != Phase::kOpen) return {};
    for (size_t n = 0; n < state_.nodes.size(); ++n) {
      const absl::Duration silence = now_ - state_.nodes[n].heard;
      if (silence < options_.peer_timeout) continue;
      return Relink(
          absl::UnavailableError(absl::StrCat(
              "node ", n, " has been silent for ",
              absl::FormatDuration(absl::Trunc(silence, absl::Seconds(1))))),
          &state_);
    }
    return {};
  }

 private:
  Actions OnJoin(NodeRank from, Incarnation incarnation, const v1::Join& join) {
    NodeState& node = state_.nodes[from.value()];
    const bool is_known =
        node.join.has_value() && node.incarnation == incarnation;
    if (state_.phase == Phase::kOpen) {
      if (!is_known) {
        return Relink(
            absl::UnavailableError(absl::StrCat(
                "the daemon of node ", from.value(), " has started again")),
            &state_);
      }
      node.heard = now_;
      return {SendTo(from, ViewFrame(state_), "a repeated join")};
    }
    node.heard = now_;
    if (is_known) return {Drop("a repeated join, the view is not made yet")};
    node.join = join;
    node.incarnation = incarnation;
    if (state_.since == absl::InfinitePast()) {
      state_.since = now_;
      state_.deadline = now_ + options_.join_timeout;
    }
    Actions actions = RefuseStrangers();
    if (std::none_of(state_.nodes.begin(), state_.nodes.end(), HasNotJoined)) {
      for (Action& action : OpenView()) actions.push_back(std::move(action));
    }
    return actions;
  }

  // Everyone is compared with node 0; whoever differs may mend it and join
  // again until the deadline.
  Actions RefuseStrangers() {
    Actions actions;
    if (HasNotJoined(state_.nodes[0])) return actions;
    const v1::Join& first = *state_.nodes[0].join;
    for (int n = 0; n < options_.num_nodes; ++n) {
      NodeState& node = state_.nodes[n];
      if (HasNotJoined(node)) continue;
      const std::string difference =
          JoinDifference(options_.num_nodes, first, n, *node.join);
      if (difference.empty()) continue;
      v1::PeerFrame frame;
      frame.mutable_refusal()->set_code(
          static_cast<int>(absl::StatusCode::kInvalidArgument));
      frame.mutable_refusal()->set_text(difference);
      frame.set_to_incarnation(node.incarnation.value());
      actions.push_back(SendTo(NodeRank(n), std::move(frame), difference));
      node = NodeState();
    }
    return actions;
  }

  Actions OpenView() {
    const v1::Join& first = *state_.nodes[0].join;
    if (GoesOn(first)) {
      const absl::Status agreed = GoOn();
      if (!agreed.ok()) return End(agreed, &state_);
    } else {
      state_.generation = Generation(1);
      state_.open_step =
          Step(first.has_state() ? first.weight_version() + 1 : 1);
      if (first.has_state()) state_.optimizer_step = first.optimizer_step();
      state_.awaits_ready =
          std::all_of(state_.nodes.begin(), state_.nodes.end(),
                      [](const NodeState& n) { return n.join->says_ready(); });
    }
    state_.has_started = !state_.awaits_ready;
    state_.phase = Phase::kOpen;
    ClearVotes();
    return {SendToAll(ViewFrame(state_), "all nodes are here and agree")};
  }

  // The job keeps its generation: what its workers have pushed stays.
  absl::Status GoOn() {
    std::vector<const v1::Join*> joins;
    for (const NodeState& node : state_.nodes) joins.push_back(&*node.join);
    absl::StatusOr<Rejoined> rejoined = DecideRejoin(joins);
    if (!rejoined.ok()) return rejoined.status();
    state_.generation = rejoined->generation;
    state_.open_step = rejoined->open_step;
    state_.optimizer_step = rejoined->optimizer_step;
    state_.to_publish = std::move(rejoined->commit);
    state_.to_repeat = std::move(rejoined->abort);
    state_.rank0_cursor = std::move(rejoined->rank0_cursor);
    return absl::OkStatus();
  }

  Actions OnReady(NodeRank from, const v1::PeerFrame& frame) {
    if (state_.phase != Phase::kOpen || !state_.awaits_ready ||
        frame.generation() != state_.generation.value()) {
      return {Drop("nobody waits for a node that is ready")};
    }
    if (state_.has_started) {
      return {SendTo(from, StartFrame(state_), "the start was lost")};
    }
    NodeState& node = state_.nodes[from.value()];
    if (node.is_ready) return {Drop("ready as before")};
    node.is_ready = true;
    if (state_.since == absl::InfinitePast()) state_.since = now_;
    if (std::any_of(state_.nodes.begin(), state_.nodes.end(), IsNotReady)) {
      return {};
    }
    state_.has_started = true;
    state_.since = absl::InfinitePast();
    return {SendToAll(StartFrame(state_), "all nodes have the first weights")};
  }

  Actions OnVote(NodeRank from, const v1::PeerFrame& frame) {
    const v1::Vote& vote = frame.vote();
    if (state_.phase != Phase::kOpen) return {Drop("a vote before the view")};
    if (!state_.has_started) return {Drop("a vote before the start")};
    if (frame.generation() != state_.generation.value() ||
        vote.step() != state_.open_step.value()) {
      return {AnswerLateVote(from, frame)};
    }
    if (vote.heal_round() != state_.heal_round) {
      if (vote.heal_round() > state_.heal_round) {
        return {Drop("a vote in a round that is not open")};
      }
      return {SendTo(from, HealFrame(state_), "the call to heal was lost")};
    }
    NodeState& node = state_.nodes[from.value()];
    if (node.vote.has_value()) return {Drop("a repeated vote")};
    node.vote = vote;
    const std::string closed = NodeList(state_, HasClosed);
    if (!closed.empty()) {
      return End(absl::FailedPreconditionError(
                     absl::StrCat("the workers of ", closed,
                                  " closed the job before step ", vote.step())),
                 &state_);
    }
    if (state_.since == absl::InfinitePast()) {
      state_.since = now_;
      state_.deadline = now_ + options_.vote_timeout;
    }
    return DecideIfDue();
  }

  Actions DecideIfDue() {
    if (state_.is_held ||
        std::any_of(state_.nodes.begin(), state_.nodes.end(), HasNotVoted)) {
      return {};
    }
    return DecideOpenStep();
  }

  Action AnswerLateVote(NodeRank from, const v1::PeerFrame& frame) {
    if (state_.last.has_value() &&
        state_.last->generation() == frame.generation()) {
      const int64_t decided = state_.last->has_commit()
                                  ? state_.last->commit().step()
                                  : state_.last->abort().step();
      if (decided == frame.vote().step()) {
        return SendTo(from, *state_.last, "the outcome was lost");
      }
    }
    return Drop(absl::StrCat("a vote for step ", frame.vote().step(),
                             " in generation ", frame.generation()));
  }

  Actions DecideOpenStep() {
    std::vector<const v1::Vote*> votes;
    for (const NodeState& node : state_.nodes) votes.push_back(&*node.vote);
    const absl::Status same = CheckSameWeights(votes);
    if (!same.ok()) return CallToHeal(same);
    const StepRules rules{
        .optimizer = options_.optimizer,
        .gradient_clipping = options_.gradient_clipping,
        .optimizer_step = state_.optimizer_step,
        .local_world_size = state_.nodes[0].join->local_world_size(),
        .metered = &options_.metered};
    StepErrors errors;
    std::variant<v1::Commit, v1::Abort> what =
        DecideStep(rules, votes, &errors);
    v1::PeerFrame outcome;
    outcome.set_generation(state_.generation.value());
    std::string why = "all nodes voted yes";
    if (auto* commit = std::get_if<v1::Commit>(&what)) {
      if (commit->load() != 0) {
        why = "all ranks load weights";
      } else if (commit->skipped()) {
        why = "a gradient is not finite";
      }
      for (v1::CodecChange& change : DecideBudget(
               options_.budget, options_.metered, errors, &state_.budget)) {
        *commit->add_codec_changes() = std::move(change);
      }
      state_.optimizer_step = commit->optimizer_step();
      state_.open_step = state_.open_step.next();
      *outcome.mutable_commit() = std::move(*commit);
    } else {
      v1::Abort& abort = std::get<v1::Abort>(what);
      why = abort.text();
      if (state_.generation.value() >= proto::kMaxGeneration) {
        return End(absl::ResourceExhaustedError("too many aborted steps"),
                   &state_);
      }
      state_.generation = state_.generation.next();
      abort.set_next_generation(state_.generation.value());
      *outcome.mutable_abort() = std::move(abort);
    }
    ClearVotes();
    state_.last = outcome;
    Actions actions;
    actions.push_back({Action::Kind::kRecord, std::nullopt, outcome, why});
    actions.push_back(SendToAll(std::move(outcome), why));
    return actions;
  }

  Actions CallToHeal(const absl::Status& why) {
    const int round = state_.heal_round + 1;
    if (round > kMaxHealRounds) {
      return End(absl::DataLossError(absl::StrCat(
                     why.message(), "; comparing them with their owners' ",
                     kMaxHealRounds, " times did not change that")),
                 &state_);
    }
    ClearVotes();
    state_.heal_round = round;
    state_.since = now_;
    state_.deadline = now_ + options_.vote_timeout;
    return {SendToAll(HealFrame(state_), std::string(why.message()))};
  }

  Actions OnLeave(NodeRank from, const v1::PeerFrame& frame) {
    const absl::Status why =
        ToStatus(frame.leave().code(), frame.leave().text());
    NodeState& node = state_.nodes[from.value()];
    // Before the view too: a node that comes again comes by other links.
    if (frame.leave().relinks()) {
      return Relink(
          absl::Status(why.code(), absl::StrCat("node ", from.value(),
                                                " reports: ", why.message())),
          &state_);
    }
    if (!why.ok()) {
      return End(absl::Status(why.code(),
                              absl::StrCat("node ", from.value(),
                                           " left the job: ", why.message())),
                 &state_);
    }
    node.closed = true;
    const bool all_closed =
        std::all_of(state_.nodes.begin(), state_.nodes.end(), HasClosed);
    if (!all_closed) return {};
    return End(absl::OkStatus(), &state_);
  }

  Actions OnDeadline() {
    if (state_.phase == Phase::kGathering) {
      return End(absl::DeadlineExceededError(absl::StrCat(
                     NodeList(state_, HasNotJoined), " did not join within ",
                     absl::FormatDuration(options_.join_timeout))),
                 &state_);
    }
    return End(absl::DeadlineExceededError(absl::StrCat(
                   NodeList(state_, HasNotVoted), " did not vote on step ",
                   state_.open_step.value(), " within ",
                   absl::FormatDuration(options_.vote_timeout))),
               &state_);
  }

  void ClearVotes() {
    for (NodeState& node : state_.nodes) node.vote.reset();
    state_.heal_round = 0;
    state_.since = absl::InfinitePast();
    state_.deadline = absl::InfiniteFuture();
  }

  const CoordinatorOptions& options_;
  const absl::Time now_;
  CoordinatorState& state_;
};

}  // namespace

CoordinatorState InitialCoordinatorState(const CoordinatorOptions& options,
                                         int64_t optimizer_step) {
  CoordinatorState state;
  state.optimizer_step = optimizer_step;
  state.budget = InitialBudgetState(options.budget);
  state.nodes.resize(options.num_nodes);
  return state;
}

Actions Decide(const CoordinatorOptions& options, const CoordinatorEvent& event,
               absl::Time now, CoordinatorState* state) {
  Decider decider(options, now, state);
  if (const auto* peer = std::get_if<PeerEvent>(&event)) {
    return decider.OnPeer(*peer);
  }
  if (const auto* hold = std::get_if<HoldEvent>(&event)) {
    return decider.OnHold(*hold);
  }
  return decider.OnTick();
}

std::string WaitingFor(const CoordinatorState& state, absl::Time now) {
  if (state.phase == Phase::kEnded || state.since == absl::InfinitePast()) {
    return "";
  }
  const std::string waited = absl::FormatDuration(
      absl::Trunc(now - state.since, absl::Milliseconds(100)));
  if (state.phase == Phase::kGathering) {
    return absl::StrCat(NodeList(state, HasNotJoined), " has not joined for ",
                        waited);
  }
  if (!state.has_started) {
    return absl::StrCat(NodeList(state, IsNotReady),
                        " has not had the first weights for ", waited);
  }
  return absl::StrCat(NodeList(state, HasNotVoted),
                      state.heal_round == 0
                          ? " has not voted on step "
                          : " has not healed its weights and voted again on "
                            "step ",
                      state.open_step.value(), " for ", waited);
}

}  // namespace ballast::membership
