#include "server/engine/job_engine.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "proto/control_block.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/engine/fake_neighbours.h"
#include "server/engine/job_engine_testing.h"

namespace ballast::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(JobEngineTest, ReducesABucketWhenAllRanksPushedIt) {
  Make(2);
  EXPECT_THAT(TakeLog(), ElementsAre("open 1/1"));
  Push(0, 1);
  EXPECT_THAT(TakeLog(), IsEmpty());
  Push(1, 1);
  EXPECT_THAT(TakeLog(), ElementsAre("reduce 1@1"));
  Push(0, 0);
  Push(1, 0);
  EXPECT_THAT(TakeLog(), ElementsAre("reduce 0@1"));
}

TEST_F(JobEngineTest, VotesWhenAllIsReducedAndAllInputsAreIn) {
  Make(2);
  PushAll();
  Reduced(0);
  Input(0);
  Reduced(1);
  EXPECT_THAT(members_.votes, IsEmpty());
  Input(1);
  ASSERT_EQ(members_.votes.size(), 1);
  const v1::Vote& vote = members_.votes[0];
  EXPECT_EQ(vote.step(), 1);
  EXPECT_FALSE(vote.non_finite());
  EXPECT_EQ(vote.groups(0).lr(), 0.5);
  kernels::ExactSum sum;
  ASSERT_TRUE(kernels::ExactSum::FromLimbs(
      std::vector<uint64_t>(vote.norm2_limbs().begin(),
                            vote.norm2_limbs().end()),
      &sum));
  EXPECT_EQ(sum.ToDouble(), 2);
}

TEST_F(JobEngineTest, TheVoteSaysWhichWeightsAreShownHere) {  // I2
  Make(2);
  collective_.state.digest = 0x123456789;
  Compute();
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(members_.votes[0].published_digest(), 0x123456789);
}

TEST_F(JobEngineTest, VotesAgainOnceItsWeightsAreHealed) {  // I2
  Make(2);
  PushAll();
  Input(0);
  Input(1);
  Reduced(0);
  Reduced(1);
  v1::Heal heal;
  heal.set_step(1);
  heal.set_round(1);
  log_.clear();
  engine_->OnHeal(heal);
  EXPECT_THAT(TakeLog(), ElementsAre("compare"));
  engine_->OnHeal(heal);           // a stray
  engine_->OnCommit(CommitOf(1));  // nor is this awaited
  EXPECT_EQ(engine_->counts().strays, 2);
  collective_.state.digest = 9;
  collective_.state.heals = {0, 0, 3, 0};
  engine_->OnCompared();
  EXPECT_THAT(TakeLog(), ElementsAre("vote 1"));
  ASSERT_EQ(members_.votes.size(), 2);
  EXPECT_EQ(members_.votes[1].heal_round(), 1);
  EXPECT_EQ(members_.votes[1].published_digest(), 9);
  // Else it is the vote that it was: its gradients are as they were reduced.
  members_.votes[1].set_heal_round(0);
  members_.votes[1].set_published_digest(members_.votes[0].published_digest());
  EXPECT_EQ(members_.votes[1].SerializeAsString(),
            members_.votes[0].SerializeAsString());
  engine_->OnCompared();  // a stray
  EXPECT_EQ(engine_->counts().strays, 3);
  engine_->OnCommit(CommitOf(1));
  for (int b : {0, 1}) Updated(b);
  for (int b : {0, 1}) Published(b);
  EXPECT_EQ(engine_->last_summary().fallbacks, 3);
  EXPECT_EQ(engine_->counts().chunks_healed, 3);
}

TEST_F(JobEngineTest, EachHealIsToldOfOnce) {  // I21
  Make(1);
  collective_.state.faults = {4, 0, 0, 0, 0};
  for (int step = 1; step <= 3; ++step) {
    PushAll();
    Input(0);
    Input(1);
    Reduced(0);
    if (step == 2) collective_.state.heals = {1, 1, 0, 0};
    engine_->OnCommit(CommitOf(step));
    Updated(0);
    Published(0);
    EXPECT_EQ(engine_->last_summary().fallbacks, step == 2 ? 2 : 0);
  }
  EXPECT_EQ(engine_->counts().chunks_bad, 4);
  EXPECT_EQ(engine_->counts().chunks_healed, 2);
}

TEST_F(JobEngineTest, NothingIsUpdatedBeforeTheCommit) {
  Make(2);
  Compute();
  EXPECT_THAT(log_, Not(Contains(HasSubstr("update"))));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("consumed"))));
}

TEST_F(JobEngineTest, CommitIsCarriedOutInOrder) {
  Make(2);
  Compute();
  TakeLog();
  CarryOut(1);
  // The next step opens before a gradient may be overwritten; the record is
  // complete before the last bucket is visible.
  EXPECT_THAT(TakeLog(),
              ElementsAre("record 1", "committed 1", "open 1/2", "consumed 0@1",
                          "consumed 1@1", "begin 1 with 1 scalars", "update 0",
                          "update 1", "publish 0@1", "publish 1@1",
                          "published 0@1", "finished 1", "published 1@1"));
  EXPECT_EQ(state_.scalars().cursors,
            (std::vector<std::string>{"cursor0", "cursor1"}));
  EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
  EXPECT_EQ(engine_->open_step(), Step(2));
  EXPECT_TRUE(engine_->is_idle());
  EXPECT_EQ(engine_->counts().strays, 0);
}

TEST_F(JobEngineTest, BucketsArePublishedAsSoonAsTheyAreUpdated) {
  Make(2);
  Compute();
  engine_->OnCommit(CommitOf(1));
  TakeLog();
  Updated(1);
  Published(1);
  EXPECT_THAT(TakeLog(), ElementsAre("publish 1@1", "published 1@1"));
  EXPECT_EQ(engine_->weight_version(), WeightVersion(0));
}

TEST_F(JobEngineTest, EarlyPushWaitsForItsOwnPublish) {  // I2
  Make(2);
  Compute();
  engine_->OnCommit(CommitOf(1));
  PushAll();  // for step 2
  Updated(0);
  TakeLog();
  Published(0);
  EXPECT_THAT(TakeLog(), ElementsAre("published 0@1", "reduce 0@2"));
  Reduced(0);
  Input(0);
  Input(1);
  EXPECT_EQ(members_.votes.size(), 1);  // step 1 is not published yet
  Updated(1);
  Published(1);
  Reduced(1);
  EXPECT_EQ(members_.votes.size(), 2);
  EXPECT_EQ(engine_->counts().strays, 0);
}

TEST_F(JobEngineTest, SkippedStepLeavesTheOptimizerAlone) {  // I10
  Make(2);
  PushAll();
  Reduced(0);
  Reduced(1, 0, /*finite=*/false);
  Input(0);
  Input(1);
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_TRUE(members_.votes[0].non_finite());
  TakeLog();
  engine_->OnCommit(CommitOf(1, /*skipped=*/true));
  EXPECT_THAT(TakeLog(),
              ElementsAre("record 1", "committed 1", "open 1/2", "consumed 0@1",
                          "consumed 1@1", "published 0@1", "finished 1",
                          "published 1@1"));
  EXPECT_TRUE(engine_->last_summary().skipped);
  EXPECT_EQ(engine_->counts().skipped, 1);
}

TEST_F(JobEngineTest, AbortVoidsTheStepAndStartRepeatsIt) {
  Make(2);
  Compute();
  TakeLog();
  engine_->OnAbort(AbortOf(1));
  EXPECT_THAT(TakeLog(), ElementsAre("aborted 1 next 2: mend it"));
  PushAll();  // between generations nothing counts
  EXPECT_EQ(engine_->counts().strays, 4);
  engine_->Start(Generation(2), Step(1), &collective_);
  EXPECT_THAT(TakeLog(), ElementsAre("open 2/1"));
  Compute();
  CarryOut(1);
  EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
  EXPECT_EQ(engine_->counts().aborted, 1);
  EXPECT_EQ(engine_->counts().committed, 1);
  EXPECT_EQ(engine_->last_summary().generation, Generation(2));
}

TEST_F(JobEngineTest, NoBucketsStillStep) {  // I4
  Make(0);
  Input(0);
  EXPECT_THAT(members_.votes, IsEmpty());
  Input(1);
  ASSERT_EQ(members_.votes.size(), 1);
  TakeLog();
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(TakeLog(),
              ElementsAre("record 1", "committed 1", "open 1/2", "finished 1"));
}

TEST_F(JobEngineTest, StraysChangeNothing) {  // I19, I26
  Make(2);
  Push(7, 0);
  Push(-1, 0);
  Push(0, 2);
  Push(0, -1);
  Reduced(0);
  Updated(0);
  Published(5);
  engine_->OnBroadcast();
  engine_->OnCommit(CommitOf(1));
  engine_->OnAbort(AbortOf(1));
  Push(0, 0);
  Push(0, 0);
  Input(0);
  Input(0);
  engine_->OnStepInputRefused(LocalRank(0), absl::InternalError("x"));
  EXPECT_EQ(engine_->counts().strays, 13);
  EXPECT_THAT(TakeLog(), ElementsAre("open 1/1"));
  Push(1, 0);
  Push(1, 1);
  Push(0, 1);
  Reduced(0);
  Reduced(0);
  Reduced(1);
  Input(1);
  engine_->OnCommit(CommitOf(2));  // of another step
  EXPECT_EQ(engine_->counts().committed, 0);
  CarryOut(1);
  engine_->OnCommit(CommitOf(1));  // repeated
  EXPECT_EQ(engine_->counts().committed, 1);
  EXPECT_EQ(engine_->counts().strays, 16);
}

TEST_F(JobEngineTest, AStepThatLoadsPublishesWhatWasGiven) {  // I1, I2
  Make(2);
  Compute();
  TakeLog();
  v1::Commit commit = CommitOf(1, /*skipped=*/true);
  commit.set_load(1);
  commit.set_optimizer_step(0);
  engine_->OnLoaded();  // nothing is being loaded
  engine_->OnCommit(commit);
  // Rank 0's gradients are read after the commit: nobody may write them yet.
  EXPECT_THAT(TakeLog(),
              ElementsAre("record 1", "committed 1", "open 1/2", "load 1"));
  // What is pushed meanwhile waits for the weights.
  PushAll();
  EXPECT_THAT(TakeLog(), Not(Contains(HasSubstr("reduce"))));
  engine_->OnLoaded();
  const CallLog log = TakeLog();
  EXPECT_THAT(log, Contains("consumed 0@1"));
  EXPECT_THAT(log, Contains("published 1@1"));
  EXPECT_THAT(log, Contains("reduce 0@2"));
  EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
  EXPECT_TRUE(engine_->last_summary().loaded);
  EXPECT_FALSE(engine_->last_summary().skipped);
  EXPECT_EQ(engine_->counts().loaded, 1);
  EXPECT_EQ(engine_->counts().skipped, 0);
  const int64_t strays = engine_->counts().strays;
  engine_->OnLoaded();
  EXPECT_EQ(engine_->counts().strays, strays + 1);

  Make(1);
  Compute();
  commit.set_load(2);
  engine_->OnCommit(commit);
  EXPECT_THAT(log_, Contains("load 1 anew"));
}

TEST_F(JobEngineTest, WhatRank0CommitsIsTold) {
  Make(1);
  Compute();
  EXPECT_EQ(members_.votes.back().rank0_cursor(), "") << "this is node 1";
  v1::Commit commit = CommitOf(1);
  commit.set_rank0_cursor("rank 0's");
  engine_->OnCommit(commit);
  EXPECT_EQ(workers_.rank0_cursors.back(), "rank 0's");
  // I27: what no worker could have given ends the job.
  Make(1);
  Compute();
  commit.set_rank0_cursor(std::string(proto::kMaxCursorBytes + 1, 'x'));
  engine_->OnCommit(commit);
  EXPECT_THAT(log_, Contains(HasSubstr("has a cursor of rank 0 of 65537")));
}

TEST_F(JobEngineTest, StagesAddUpToTheStep) {
  Make(1);
  clock_.Advance(absl::Seconds(100));  // wait
  Push(0, 0);
  clock_.Advance(absl::Seconds(1));  // collect
  Push(1, 0);
  Input(0);
  Input(1);
  clock_.Advance(absl::Seconds(2));  // reduce
  Reduced(0);
  clock_.Advance(absl::Seconds(4));  // vote
  engine_->OnCommit(CommitOf(1));
  clock_.Advance(absl::Seconds(8));  // update
  Updated(0);
  clock_.Advance(absl::Seconds(16));  // publish
  collective_.bytes = {.wire_sent = 5,
                       .wire_received = 6,
                       .payload_sent = 4,
                       .broadcast_sent = 700};  // of no step
  Published(0);
  const StepSummary& summary = engine_->last_summary();
  EXPECT_THAT(summary.stage_seconds, ElementsAre(1, 2, 4, 8, 16, 100));
  EXPECT_EQ(summary.seconds, 31);
  EXPECT_EQ(summary.grad_norm, 2);
  EXPECT_EQ(summary.clip_factor, 0.5);
  EXPECT_EQ(summary.lr, 0.5);
  EXPECT_EQ(summary.wire_bytes_sent, 5);
  EXPECT_EQ(summary.wire_bytes_received, 6);
  EXPECT_EQ(summary.payload_bytes, 4);
}

TEST_F(JobEngineTest, SaysWhomItWaitsFor) {  // I23
  Make(3);
  Push(0, 0);
  for (int b = 0; b < 3; ++b) Push(1, b);
  clock_.Advance(absl::Milliseconds(12340));
  EXPECT_EQ(engine_->WaitingFor(clock_.Now()),
            "rank 2 has not pushed 2 of 3 buckets, rank 3 has not called step "
            "of step 1 for 12.3s");
  Push(0, 1);
  Push(0, 2);
  Input(0);
  Input(1);
  Reduced(0);
  EXPECT_EQ(engine_->WaitingFor(clock_.Now()),
            "other nodes have not sent 2 of 3 buckets of step 1 for 0");
  Reduced(1);
  Reduced(2);
  EXPECT_EQ(engine_->WaitingFor(clock_.Now()), "");  // membership knows
}

}  // namespace
}  // namespace ballast::engine
