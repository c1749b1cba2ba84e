#include "server/membership/coordinator.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"

namespace ballast::membership {
namespace {

using ::testing::HasSubstr;
using Kind = Action::Kind;

const absl::Time kStart = absl::UnixEpoch();

class CoordinatorTest : public ::testing::Test {
 protected:
  void Make(int num_nodes) {
    options_.num_nodes = num_nodes;
    options_.join_timeout = absl::Seconds(60);
    options_.peer_timeout = absl::Seconds(30);
    state_ = InitialCoordinatorState(options_, 0);
  }

  static v1::Join JoinOf(int num_nodes) {
    v1::Join join;
    join.set_num_nodes(num_nodes);
    join.set_local_world_size(2);
    join.set_layout_digest("l");
    join.set_model_digest("m");
    join.add_options()->set_name("hold");
    return join;
  }

  Actions Send(int from, v1::PeerFrame frame, uint64_t incarnation = 0) {
    frame.set_incarnation(incarnation != 0 ? incarnation : 100 + from);
    return Decide(options_, PeerEvent{NodeRank(from), frame}, now_, &state_);
  }
  Actions Join(int from) { return Join(from, JoinOf(options_.num_nodes)); }
  Actions Join(int from, const v1::Join& join, uint64_t incarnation = 0) {
    v1::PeerFrame frame;
    *frame.mutable_join() = join;
    return Send(from, frame, incarnation);
  }
  Actions Vote(int from, int64_t generation, int64_t step, double lr = 1) {
    v1::PeerFrame frame;
    frame.set_generation(generation);
    frame.mutable_vote()->set_step(step);
    const kernels::ExactSum zero;
    for (uint64_t limb : zero.limbs()) {
      frame.mutable_vote()->add_norm2_limbs(limb);
    }
    frame.mutable_vote()->add_groups()->set_lr(lr);
    return Send(from, frame);
  }
  Actions VoteOn(int from, uint64_t digest, int round = 0, int64_t step = 1) {
    v1::PeerFrame frame;
    frame.set_generation(1);
    frame.mutable_vote()->set_step(step);
    frame.mutable_vote()->set_published_digest(digest);
    frame.mutable_vote()->set_heal_round(round);
    const kernels::ExactSum zero;
    for (uint64_t limb : zero.limbs()) {
      frame.mutable_vote()->add_norm2_limbs(limb);
    }
    frame.mutable_vote()->add_groups()->set_lr(1);
    return Send(from, frame);
  }
  Actions Ready(int from, int64_t generation = 1) {
    v1::PeerFrame frame;
    frame.set_generation(generation);
    frame.mutable_ready();
    return Send(from, frame);
  }
  Actions Leave(int from, absl::Status why) {
    return Send(from, LeaveFrame(why));
  }
  Actions Tick() { return Decide(options_, TickEvent{}, now_, &state_); }

  void Open(int num_nodes) {
    Make(num_nodes);
    for (int n = 0; n < num_nodes; ++n) Join(n);
    ASSERT_EQ(state_.phase, CoordinatorState::Phase::kOpen);
  }

  static bool IsDrop(const Actions& actions) {
    return actions.size() == 1 && actions[0].kind == Kind::kDrop;
  }

  CoordinatorOptions options_;
  CoordinatorState state_;
  absl::Time now_ = kStart;
};

TEST_F(CoordinatorTest, ViewWhenAllHaveJoined) {
  Make(2);
  EXPECT_TRUE(Join(1).empty());
  const Actions actions = Join(0);
  ASSERT_EQ(actions.size(), 1);
  EXPECT_FALSE(actions[0].to.has_value());
  EXPECT_EQ(actions[0].frame.generation(), 1);
  EXPECT_EQ(actions[0].frame.view().nodes_size(), 2);
  EXPECT_EQ(actions[0].frame.view().open_step(), 1);
}

TEST_F(CoordinatorTest, HeldStateGoesOnAtItsStep) {
  Make(1);
  v1::Join join = JoinOf(1);
  join.set_has_state(true);
  join.set_weight_version(41);
  join.set_optimizer_step(40);
  EXPECT_EQ(Join(0, join)[0].frame.view().open_step(), 42);
  EXPECT_EQ(state_.optimizer_step, 40);
  EXPECT_EQ(state_.generation, Generation(1));
}

TEST_F(CoordinatorTest, DecidesNoStepThatIsHeld) {
  Open(2);
  const auto hold = [this](bool is_held) {
    return Decide(options_, HoldEvent{is_held}, now_, &state_);
  };
  EXPECT_TRUE(hold(true).empty());
  EXPECT_TRUE(hold(false).empty());  // nobody has voted
  EXPECT_TRUE(hold(true).empty());
  EXPECT_TRUE(Vote(0, 1, 1).empty());
  EXPECT_TRUE(Vote(1, 1, 1).empty());
  EXPECT_EQ(state_.open_step, Step(1));
  const Actions actions = hold(false);
  ASSERT_EQ(actions.size(), 2);
  EXPECT_EQ(actions[0].kind, Kind::kRecord);
  EXPECT_TRUE(actions[1].frame.has_commit());
  EXPECT_EQ(state_.open_step, Step(2));
  EXPECT_TRUE(hold(false).empty());
}

// All choose by the same numbers; a peer's nonsense is none of them.
TEST_F(CoordinatorTest, AJobThatGoesOnWhereItWasKeepsItsGeneration) {
  for (const auto& [said, kept] :
       std::vector<std::pair<int64_t, int64_t>>{{7, 7}, {-3, 1}}) {
    Make(1);
    v1::Join join = JoinOf(1);
    join.set_has_state(true);
    join.set_weight_version(41);
    join.set_generation(said);
    join.mutable_progress()->set_finished_step(41);
    EXPECT_EQ(Join(0, join)[0].frame.generation(), kept);
  }
  // Without a state it is a new life of the job.
  Make(1);
  v1::Join join = JoinOf(1);
  join.set_generation(7);
  EXPECT_EQ(Join(0, join)[0].frame.generation(), 1);
}

// No step before all nodes have the first weights.
TEST_F(CoordinatorTest, StartsOnceAllAreReady) {
  Make(3);
  v1::Join join = JoinOf(3);
  join.set_says_ready(true);
  EXPECT_TRUE(IsDrop(Ready(0)));  // nobody has joined
  Join(0, join);
  Join(1, join);
  const Actions view = Join(2, join);
  ASSERT_EQ(view.size(), 1);
  EXPECT_TRUE(view[0].frame.view().awaits_ready());
  EXPECT_EQ(Ready(2).size(), 0);
  EXPECT_EQ(Ready(0).size(), 0);
  EXPECT_TRUE(IsDrop(Ready(0)));     // repeated
  EXPECT_TRUE(IsDrop(Ready(1, 2)));  // of no generation that there is
  EXPECT_TRUE(IsDrop(Vote(0, 1, 1)));
  EXPECT_EQ(WaitingFor(state_, now_ + absl::Seconds(3)),
            "node 1 has not had the first weights for 3s");
  const Actions start = Ready(1);
  ASSERT_EQ(start.size(), 1);
  EXPECT_TRUE(start[0].frame.has_start());
  EXPECT_EQ(start[0].frame.generation(), 1);
  EXPECT_FALSE(start[0].to.has_value());  // all
  EXPECT_EQ(WaitingFor(state_, now_ + absl::Seconds(3)), "");
  // It was lost on its way to one of them.
  const Actions again = Ready(2);
  ASSERT_EQ(again.size(), 1);
  EXPECT_TRUE(again[0].frame.has_start());
  EXPECT_EQ(again[0].to, NodeRank(2));
  Vote(0, 1, 1);
  Vote(1, 1, 1);
  const Actions commit = Vote(2, 1, 1);
  ASSERT_EQ(commit.size(), 2);
  EXPECT_TRUE(commit[1].frame.has_commit());
}

// Nodes of an earlier version say nothing: everybody starts by itself, as do
// those that go on.
TEST_F(CoordinatorTest, ReadyIsNotAwaitedWhereSomeDoNotSayIt) {
  Make(2);
  v1::Join join = JoinOf(2);
  join.set_says_ready(true);
  Join(0, join);
  const Actions view = Join(1);
  ASSERT_EQ(view.size(), 1);
  EXPECT_FALSE(view[0].frame.view().awaits_ready());
  EXPECT_TRUE(IsDrop(Ready(0)));
  Vote(0, 1, 1);
  EXPECT_TRUE(Vote(1, 1, 1)[1].frame.has_commit());
}

TEST_F(CoordinatorTest, TheViewTellsWhatTheWorstLinksCost) {
  Make(3);
  const auto join = [this](int from, double latency, double per_byte) {
    v1::Join wish = JoinOf(3);
    wish.mutable_link_cost()->set_latency(latency);
    wish.mutable_link_cost()->set_per_byte(per_byte);
    return Join(from, wish);
  };
  join(0, 2e-5, 1e-9);
  join(1, std::numeric_limits<double>::quiet_NaN(), -1);
  const Actions actions =
      join(2, 1e-5, std::numeric_limits<double>::infinity());
  ASSERT_EQ(actions.size(), 1);
  const v1::LinkCost& cost = actions[0].frame.view().link_cost();
  EXPECT_EQ(cost.latency(), 2e-5);
  EXPECT_EQ(cost.per_byte(), 1e-9);
  EXPECT_EQ(cost.per_message(), 0);
}

TEST_F(CoordinatorTest, WhoeverDiffersIsRefusedAndMayMendIt) {
  struct Case {
    const char* says;
    void (*change)(v1::Join*);
  };
  const Case cases[] = {
      {"number of nodes is 9 on node 1 but 2 on node 0",
       [](v1::Join* join) { join->set_num_nodes(9); }},
      {"local world size is 5 on node 1",
       [](v1::Join* join) { join->set_local_world_size(5); }},
      {"tensors", [](v1::Join* join) { join->set_model_digest("x"); }},
      {"bucket or chunk size",
       [](v1::Join* join) { join->set_layout_digest("x"); }},
      {"hold is 5m on node 1",
       [](v1::Join* join) { join->mutable_options(0)->set_value("5m"); }},
      {"node 1 holds step 3 but node 0 holds no state",
       [](v1::Join* join) {
         join->set_has_state(true);
         join->set_weight_version(3);
       }},
  };
  for (const Case& c : cases) {
    for (const bool first_comes_last : {false, true}) {
      Make(2);
      v1::Join bad = JoinOf(2);
      c.change(&bad);
      if (!first_comes_last) Join(0);
      Actions actions = Join(1, bad);
      if (first_comes_last) actions = Join(0);
      ASSERT_EQ(actions.size(), 1) << c.says;
      EXPECT_EQ(actions[0].to, NodeRank(1));
      EXPECT_THAT(actions[0].frame.refusal().text(), HasSubstr(c.says));
      ASSERT_EQ(Join(1).size(), 1);
      EXPECT_EQ(state_.phase, CoordinatorState::Phase::kOpen);
    }
  }
}

TEST_F(CoordinatorTest, MissingNodesAreNamedAtTheDeadline) {  // I23
  Make(3);
  Join(1);
  now_ += absl::Seconds(59);
  EXPECT_TRUE(Tick().empty());
  EXPECT_EQ(WaitingFor(state_, now_), "node 0, node 2 has not joined for 59s");
  now_ += absl::Seconds(1);
  const Actions actions = Tick();
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(actions[0].frame.leave().text(),
            "node 0, node 2 did not join within 1m");
  EXPECT_TRUE(Tick().empty());
}

TEST_F(CoordinatorTest, DecidesOnceAllHaveVotedAndRecordsFirst) {
  Open(2);
  EXPECT_TRUE(Vote(1, 1, 1).empty());
  now_ += absl::Seconds(3);
  EXPECT_EQ(WaitingFor(state_, now_), "node 0 has not voted on step 1 for 3s");
  const Actions actions = Vote(0, 1, 1);
  ASSERT_EQ(actions.size(), 2);
  EXPECT_EQ(actions[0].kind, Kind::kRecord);
  EXPECT_EQ(actions[1].kind, Kind::kSend);
  EXPECT_EQ(actions[0].frame.SerializeAsString(),
            actions[1].frame.SerializeAsString());
  EXPECT_EQ(actions[1].frame.commit().step(), 1);
  EXPECT_EQ(state_.open_step, Step(2));
}

TEST_F(CoordinatorTest, RefusalWaitsForTheOthers) {
  Open(2);
  v1::PeerFrame refusal;
  refusal.set_generation(1);
  refusal.mutable_vote()->set_step(1);
  refusal.mutable_vote()->set_refusal_code(3);
  refusal.mutable_vote()->set_refusal_text("no");
  EXPECT_TRUE(Send(0, refusal).empty());
  const Actions actions = Vote(1, 1, 1);
  ASSERT_EQ(actions.size(), 2);
  EXPECT_EQ(actions[1].frame.abort().next_generation(), 2);
  EXPECT_EQ(state_.open_step, Step(1));  // again
  EXPECT_EQ(state_.generation, Generation(2));
  EXPECT_TRUE(IsDrop(Vote(0, 3, 1)));
  EXPECT_TRUE(Vote(0, 2, 1).empty());
  EXPECT_EQ(Vote(1, 2, 1)[1].frame.commit().step(), 1);
}

TEST_F(CoordinatorTest, RepeatedVoteCountsOnce) {  // I19
  Open(2);
  Vote(0, 1, 1);
  EXPECT_TRUE(IsDrop(Vote(0, 1, 1)));
  EXPECT_TRUE(IsDrop(Vote(0, 1, 1)));
  EXPECT_EQ(state_.open_step, Step(1));
}

TEST_F(CoordinatorTest, LostOutcomeIsToldAgain) {  // I19
  Open(2);
  Vote(0, 1, 1);
  const Actions first = Vote(1, 1, 1);
  const Actions again = Vote(1, 1, 1);
  ASSERT_EQ(again.size(), 1);
  EXPECT_EQ(again[0].to, NodeRank(1));
  EXPECT_EQ(again[0].frame.SerializeAsString(),
            first[1].frame.SerializeAsString());
}

TEST_F(CoordinatorTest, ForeignFramesAreDropped) {  // I27
  Open(2);
  EXPECT_TRUE(IsDrop(Vote(5, 1, 1)));
  EXPECT_TRUE(IsDrop(Vote(-1, 1, 1)));
  EXPECT_TRUE(IsDrop(Vote(0, 1, 2)));
  EXPECT_TRUE(IsDrop(Vote(0, 0, 1)));
  v1::PeerFrame other_life;
  other_life.mutable_vote()->set_step(1);
  EXPECT_TRUE(IsDrop(Send(1, other_life, 999)));
  EXPECT_TRUE(IsDrop(Send(1, v1::PeerFrame())));
}

// The nodes meet again; this life of the coordinator is over.
TEST_F(CoordinatorTest, RestartedDaemonEndsTheLinks) {
  Open(2);
  const Actions actions = Join(1, JoinOf(2), 999);
  ASSERT_EQ(actions.size(), 1);
  EXPECT_TRUE(actions[0].frame.leave().relinks());
  EXPECT_THAT(actions[0].frame.leave().text(),
              HasSubstr("node 1 has started again"));
  EXPECT_TRUE(IsDrop(Vote(0, 1, 1)));
}

TEST_F(CoordinatorTest, ALostLinkIsToldToAll) {
  Open(2);
  const Actions actions =
      Send(1, RelinkFrame(absl::UnavailableError("node 0 is gone")));
  ASSERT_EQ(actions.size(), 1);
  EXPECT_FALSE(actions[0].to.has_value());
  EXPECT_TRUE(actions[0].frame.leave().relinks());
  EXPECT_EQ(actions[0].frame.leave().text(), "node 1 reports: node 0 is gone");
}

v1::Join GoingOn(v1::Join join, int64_t state, int64_t finished) {
  join.set_has_state(true);
  join.set_generation(4);
  join.set_weight_version(state);
  join.set_optimizer_step(state - 1);
  join.mutable_progress()->set_finished_step(finished);
  v1::Outcome* const outcome = join.mutable_progress()->mutable_outcome();
  outcome->set_generation(4);
  outcome->mutable_commit()->set_step(state);
  outcome->mutable_commit()->set_optimizer_step(state - 1);
  return join;
}

// I20: the view brings the last commit to whoever lacks it, however often.
TEST_F(CoordinatorTest, NodesThatMeetAgainGoOnWithTheLastCommit) {
  Make(2);
  Join(0, GoingOn(JoinOf(2), 7, 7));
  const Actions actions = Join(1, GoingOn(JoinOf(2), 7, 6));
  ASSERT_EQ(actions.size(), 1);
  const v1::View view = actions[0].frame.view();
  EXPECT_EQ(actions[0].frame.generation(), 4);
  EXPECT_EQ(view.open_step(), 8);
  EXPECT_EQ(view.commit().step(), 7);
  EXPECT_EQ(state_.optimizer_step, 6);
  EXPECT_EQ(Join(1)[0].frame.view().SerializeAsString(),
            view.SerializeAsString());
  Vote(0, 4, 8);
  EXPECT_EQ(Vote(1, 4, 8)[0].frame.commit().optimizer_step(), 7);
}

TEST_F(CoordinatorTest, WhatContradictsItselfEndsTheJob) {
  Make(2);
  Join(0, GoingOn(JoinOf(2), 9, 9));
  const Actions actions = Join(1, GoingOn(JoinOf(2), 7, 7));
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(actions[0].frame.leave().code(),
            static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(actions[0].frame.leave().relinks());
}

TEST_F(CoordinatorTest, WhoComesWithoutItsMemoryIsRefused) {
  Make(2);
  Join(0, GoingOn(JoinOf(2), 7, 7));
  const Actions actions = Join(1);
  ASSERT_EQ(actions.size(), 1);
  EXPECT_THAT(actions[0].frame.refusal().text(),
              HasSubstr("node 1 has come without its part"));
}

TEST_F(CoordinatorTest, SilentNodeEndsTheLinks) {  // I23
  Open(2);
  now_ += absl::Seconds(20);
  EXPECT_EQ(Join(0)[0].frame.view().open_step(), 1);  // still here
  now_ += absl::Seconds(11);
  const v1::Leave leave = Tick()[0].frame.leave();
  EXPECT_EQ(leave.text(), "node 1 has been silent for 31s");
  EXPECT_TRUE(leave.relinks());
}

TEST_F(CoordinatorTest, LeaveWithAnErrorEndsTheJobForAll) {
  Open(2);
  const Actions actions = Leave(1, absl::UnavailableError("rank 2 is gone"));
  ASSERT_EQ(actions.size(), 1);
  EXPECT_FALSE(actions[0].to.has_value());
  EXPECT_EQ(actions[0].frame.leave().text(),
            "node 1 left the job: rank 2 is gone");
}

TEST_F(CoordinatorTest, LeaveBeforeTheViewEndsItToo) {  // I23
  Make(2);
  Join(1);
  const Actions actions =
      Leave(1, absl::FailedPreconditionError("rank 1 closed the job"));
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(actions[0].frame.leave().text(),
            "node 1 left the job: rank 1 closed the job");
}

TEST_F(CoordinatorTest, CloseWaitsForAllNodes) {
  Open(2);
  EXPECT_TRUE(Leave(1, absl::OkStatus()).empty());
  EXPECT_TRUE(Leave(1, absl::OkStatus()).empty());  // repeated
  const Actions actions = Leave(0, absl::OkStatus());
  ASSERT_EQ(actions.size(), 1);
  EXPECT_EQ(actions[0].frame.leave().code(), 0);
}

TEST_F(CoordinatorTest, StepAfterACloseFails) {
  Open(2);
  Leave(1, absl::OkStatus());
  EXPECT_EQ(Vote(0, 1, 1)[0].frame.leave().text(),
            "the workers of node 1 closed the job before step 1");
}

TEST_F(CoordinatorTest, NodesThatShowOtherWeightsHealAndVoteAgain) {  // I2
  Open(2);
  VoteOn(0, 7);
  now_ += absl::Seconds(2);
  const Actions actions = VoteOn(1, 8);
  ASSERT_EQ(actions.size(), 1);  // nothing is recorded
  EXPECT_FALSE(actions[0].to.has_value());
  EXPECT_EQ(actions[0].frame.generation(), 1);
  EXPECT_EQ(actions[0].frame.heal().step(), 1);
  EXPECT_EQ(actions[0].frame.heal().round(), 1);
  EXPECT_EQ(actions[0].why,
            "the published weights of version 0 are not the same everywhere: "
            "0000000000000007 on node 0; 0000000000000008 on node 1");
  now_ += absl::Seconds(3);
  EXPECT_EQ(WaitingFor(state_, now_),
            "node 0, node 1 has not healed its weights and voted again on step "
            "1 for 3s");
  EXPECT_TRUE(VoteOn(1, 7, 1).empty());
  const Actions outcome = VoteOn(0, 7, 1);
  ASSERT_EQ(outcome.size(), 2);
  EXPECT_EQ(outcome[1].frame.commit().step(), 1);
  // The next step begins with round 0 again.
  EXPECT_TRUE(IsDrop(VoteOn(0, 7, 1, 2)));
  EXPECT_TRUE(VoteOn(0, 7, 0, 2).empty());
}

TEST_F(CoordinatorTest, ALostCallToHealIsRepeated) {  // I19
  Open(2);
  VoteOn(0, 7);
  const Actions call = VoteOn(1, 8);
  const Actions again = VoteOn(1, 8);
  ASSERT_EQ(again.size(), 1);
  EXPECT_EQ(again[0].to, NodeRank(1));
  EXPECT_EQ(again[0].frame.SerializeAsString(),
            call[0].frame.SerializeAsString());
  EXPECT_TRUE(VoteOn(1, 7, 1).empty());
  EXPECT_TRUE(IsDrop(VoteOn(1, 7, 1)));  // a repeated vote
  EXPECT_TRUE(IsDrop(VoteOn(0, 7, 2)));  // a round that nobody called
  EXPECT_EQ(VoteOn(0, 8).size(), 1);     // a late one of the first round
  EXPECT_EQ(VoteOn(0, 7, 1).size(), 2);
}

TEST_F(CoordinatorTest, HealingIsTriedAFewTimes) {  // I23
  Open(3);
  for (int round = 0; round <= kMaxHealRounds; ++round) {
    ASSERT_EQ(state_.phase, CoordinatorState::Phase::kOpen);
    VoteOn(2, 9, round);
    VoteOn(0, 7, round);
    const Actions actions = VoteOn(1, 7, round);
    ASSERT_EQ(actions.size(), 1);
    if (round < kMaxHealRounds) {
      EXPECT_EQ(actions[0].frame.heal().round(), round + 1);
      continue;
    }
    EXPECT_EQ(actions[0].frame.leave().code(),
              static_cast<int>(absl::StatusCode::kDataLoss));
    EXPECT_EQ(actions[0].frame.leave().text(),
              "the published weights of version 0 are not the same everywhere: "
              "0000000000000007 on node 0, node 1; 0000000000000009 on node 2; "
              "comparing them with their owners' 3 times did not change that");
  }
  EXPECT_EQ(state_.phase, CoordinatorState::Phase::kEnded);
}

TEST_F(CoordinatorTest, AnAbortedStepIsHealedAnew) {
  Open(2);
  VoteOn(0, 7);
  VoteOn(1, 8);
  VoteOn(0, 7, 1);
  v1::PeerFrame refusal;
  refusal.set_generation(1);
  refusal.mutable_vote()->set_step(1);
  refusal.mutable_vote()->set_heal_round(1);
  refusal.mutable_vote()->set_published_digest(7);
  refusal.mutable_vote()->set_refusal_code(3);
  EXPECT_EQ(Send(1, refusal)[1].frame.abort().next_generation(), 2);
  EXPECT_EQ(state_.heal_round, 0);
}

TEST_F(CoordinatorTest, IsAPureFunction) {
  Make(2);
  Join(0);
  const CoordinatorState before = state_;
  const Actions once = Join(1);
  state_ = before;
  const Actions twice = Join(1);
  ASSERT_EQ(once.size(), twice.size());
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].why, twice[i].why);
    EXPECT_FALSE(once[i].why.empty());
    EXPECT_EQ(once[i].frame.SerializeAsString(),
              twice[i].frame.SerializeAsString());
  }
}

TEST_F(CoordinatorTest, AnyOrderOfVotesGivesTheSameOutcome) {  // I9
  std::vector<int> order = {0, 1, 2};
  std::string first;
  do {
    Open(3);
    Actions actions;
    for (int node : order) actions = Vote(node, 1, 1);
    ASSERT_EQ(actions.size(), 2);
    const std::string outcome = actions[1].frame.SerializeAsString();
    if (first.empty()) first = outcome;
    EXPECT_EQ(outcome, first);
  } while (std::next_permutation(order.begin(), order.end()));
}

// The same changes in what is recorded, told, and told again; the next step is
// judged by what is in force then.
TEST_F(CoordinatorTest, ABudgetsChangesAreInTheCommit) {
  Make(2);
  options_.metered[0] = {TensorId(9)};
  options_.budget.max_relative_error = 0.1;
  options_.budget.codecs[0] = {layout::CodecId::kInt4};
  state_ = InitialCoordinatorState(options_, 0);
  Join(0);
  Join(1);
  const auto vote = [&](int from, int64_t step) {
    v1::PeerFrame frame;
    frame.set_generation(1);
    frame.mutable_vote()->set_step(step);
    const kernels::ExactSum zero;
    for (uint64_t limb : zero.limbs()) {
      frame.mutable_vote()->add_norm2_limbs(limb);
    }
    frame.mutable_vote()->add_groups()->set_lr(1);
    v1::TensorErrors* const errors =
        frame.mutable_vote()->mutable_gradient_errors()->add_tensors();
    errors->mutable_error2()->set_first(16);
    errors->mutable_error2()->add_limbs(1);
    errors->mutable_value2()->set_first(16);
    errors->mutable_value2()->add_limbs(4);
    errors->set_sampled(10);
    return Send(from, frame);
  };
  const layout::CodecId expected[] = {layout::CodecId::kInt8,
                                      layout::CodecId::kNone};
  for (int64_t step = 1; step <= 2; ++step) {
    vote(1, step);
    const Actions actions = vote(0, step);
    ASSERT_EQ(actions.size(), 2u);
    for (const Action& action : actions) {
      const v1::Commit& commit = action.frame.commit();
      ASSERT_EQ(commit.codec_changes_size(), 1);
      EXPECT_EQ(commit.codec_changes(0).tensor(), 9);
      EXPECT_EQ(commit.codec_changes(0).to(),
                static_cast<int>(expected[step - 1]));
      EXPECT_EQ(commit.codec_changes(0).relative_error(), 0.5);
    }
    // Whoever did not hear it hears the same, and no budget is charged twice.
    const Actions again = vote(1, step);
    ASSERT_EQ(again.size(), 1u);
    EXPECT_EQ(again[0].frame.commit().SerializeAsString(),
              actions[0].frame.commit().SerializeAsString());
  }
  // There is no wider one.
  vote(0, 3);
  const Actions last = vote(1, 3);
  EXPECT_EQ(last.back().frame.commit().codec_changes_size(), 0);
}

}  // namespace
}  // namespace ballast::membership
