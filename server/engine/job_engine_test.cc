#include "server/engine/job_engine.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/engine/fake_neighbours.h"
#include "server/layout/layout.h"

namespace ballast::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kRanks = 2;

layout::Layout MakeLayout(int num_buckets) {
  std::vector<layout::TensorSpec> tensors = {
      {.name = "frozen", .shape = {3}, .trainable = false}};
  if (num_buckets > 0) {
    tensors.push_back(
        {.name = "w", .shape = {num_buckets * layout::kCellElements}});
  }
  layout::Options options;
  options.bucket_bytes = layout::kCellElements * 4;
  auto layout = layout::Layout::Create(
      std::move(tensors), {.num_nodes = 2, .local_world_size = kRanks}, 1,
      options);
  EXPECT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->buckets().size(), num_buckets);
  return *std::move(layout);
}

class JobEngineTest : public ::testing::Test {
 protected:
  void Make(int num_buckets, int64_t step = 1) {
    num_buckets_ = num_buckets;
    layout_ = std::make_unique<layout::Layout>(MakeLayout(num_buckets));
    log_.clear();
    members_.votes.clear();
    engine_ = JobEngine::Create({.layout = layout_.get(),
                                 .node = NodeRank(1),
                                 .clock = &clock_,
                                 .state = &state_,
                                 .optimizer = &optimizer_,
                                 .workers = &workers_,
                                 .members = &members_,
                                 .loads = &loads_});
    engine_->Start(Generation(1), Step(step), &collective_);
  }

  void Push(int rank, int bucket) {
    engine_->OnPushed(LocalRank(rank), BucketId(bucket));
  }
  void PushAll() {
    for (int l = 0; l < kRanks; ++l) {
      for (int b = 0; b < num_buckets_; ++b) Push(l, b);
    }
  }
  void Input(int rank, double lr = 0.5) {
    const proto::GroupValues values[] = {{.lr = lr,
                                          .beta1 = 0,
                                          .beta2 = 0,
                                          .eps = 0,
                                          .weight_decay = 0,
                                          .momentum = 0,
                                          .dampening = 0,
                                          .nesterov = 0,
                                          .lr_decay = 0,
                                          .initial_accumulator_value = 0,
                                          .max_norm = 0,
                                          .load = 0}};
    engine_->OnStepInput(LocalRank(rank), values, absl::StrCat("cursor", rank));
  }
  void Reduced(int bucket, double norm2 = 1, bool finite = true) {
    collective::Reduced reduced;
    reduced.norm2.Add(norm2);
    reduced.finite = finite;
    engine_->OnReduced(BucketId(bucket), reduced);
  }
  void Updated(int bucket) { engine_->OnUpdated(BucketId(bucket)); }
  void Published(int bucket) { engine_->OnPublished(BucketId(bucket)); }

  static v1::Commit CommitOf(int64_t step, bool skipped = false) {
    v1::Commit commit;
    commit.set_step(step);
    commit.set_skipped(skipped);
    commit.set_grad_norm(2);
    commit.set_clip_factor(0.5);
    commit.set_optimizer_step(step);
    commit.add_groups()->set_lr(0.5);
    if (!skipped) {
      commit.add_scalars(std::string(sizeof(kernels::StepScalars), '\0'));
    }
    return commit;
  }
  static v1::Abort AbortOf(int64_t step) {
    v1::Abort abort;
    abort.set_step(step);
    abort.set_next_generation(2);
    abort.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
    abort.set_text("mend it");
    return abort;
  }

  // Up to the vote.
  void Compute() {
    PushAll();
    for (int b = 0; b < num_buckets_; ++b) Reduced(b);
    for (int l = 0; l < kRanks; ++l) Input(l);
  }
  // From the commit on.
  void CarryOut(int64_t step) {
    engine_->OnCommit(CommitOf(step));
    for (int b = 0; b < num_buckets_; ++b) Updated(b);
    for (int b = 0; b < num_buckets_; ++b) Published(b);
  }
  CallLog TakeLog() { return std::exchange(log_, {}); }

  int num_buckets_ = 0;
  std::unique_ptr<layout::Layout> layout_;
  ManualClock clock_;
  CallLog log_;
  FakeWorkers workers_{&log_};
  FakeMembers members_{&log_};
  FakeLoads loads_{&log_};
  FakeCollective collective_{&log_};
  FakeOptimizer optimizer_{&log_};
  FakeState state_{&log_};
  std::unique_ptr<JobEngine> engine_;
};

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

TEST_F(JobEngineTest, RanksThatDifferRefuseInWords) {
  Make(1);
  PushAll();
  Reduced(0);
  Input(0, 0.001);
  Input(1, 0.002);
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(members_.votes[0].refusal_text(),
            "param group 0: lr is 0.001 on rank 2 but 0.002 on rank 3; all "
            "ranks must pass the same value");
  EXPECT_NE(members_.votes[0].refusal_code(), 0);
}

TEST_F(JobEngineTest, InputThatCannotBeRefuses) {  // I26
  Make(1);
  PushAll();
  Reduced(0);
  Input(0);
  engine_->OnStepInputRefused(LocalRank(1),
                              absl::InvalidArgumentError("lr is nan"));
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(members_.votes[0].refusal_text(), "lr is nan");
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

TEST_F(JobEngineTest, MalformedCommitEndsTheJob) {  // I27
  Make(1);
  Compute();
  v1::Commit commit = CommitOf(1);
  commit.set_scalars(0, "short");
  TakeLog();
  engine_->OnCommit(commit);
  EXPECT_THAT(
      TakeLog(),
      ElementsAre("leave: the commit of step 1 has 5 bytes of scalars"));
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(TakeLog(), IsEmpty());
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

TEST_F(JobEngineTest, OptimizerThatRefusesEndsTheJob) {
  Make(1);
  Compute();
  optimizer_.begin_status = absl::InvalidArgumentError("no momentum buffer");
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(log_, Contains("leave: no momentum buffer"));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("update"))));
}

TEST_F(JobEngineTest, FailedExchangeEndsTheJobOnce) {
  Make(1);
  engine_->OnFailed(absl::UnavailableError("node 0 is gone"));
  engine_->OnFailed(absl::UnavailableError("node 0 is gone"));
  EXPECT_THAT(TakeLog(),
              ElementsAre("open 1/1",
                          "leave: node 1 cannot exchange buckets: node 0 is "
                          "gone"));
}

TEST_F(JobEngineTest, StopWaitsForUpdatesAndStartsNothing) {
  Make(2);
  Compute();
  engine_->OnCommit(CommitOf(1));
  EXPECT_EQ(engine_->updates_in_flight(), 2);
  TakeLog();
  engine_->Stop();
  Updated(0);
  EXPECT_EQ(engine_->updates_in_flight(), 1);
  Updated(1);
  EXPECT_EQ(engine_->updates_in_flight(), 0);
  PushAll();
  EXPECT_THAT(TakeLog(), IsEmpty());
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

// I9, I19: contributions in any order, with repetitions and overlapping the
// publish of the step before, give the same decisions and the same sums.
class AnyOrder : public JobEngineTest {
 protected:
  static constexpr int kBuckets = 5;
  static constexpr int kSteps = 4;

  // What everybody else sees of a run: votes and calls that count, sorted
  // within a step where order is free.
  std::string Run(uint64_t seed, bool lose_one_push = false) {
    base::SeededRandom random(seed);
    Make(kBuckets);
    std::string seen;
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<std::pair<int, int>> events;  // (rank, bucket or input)
      for (int l = 0; l < kRanks; ++l) {
        for (int b = 0; b <= kBuckets; ++b) events.push_back({l, b});
      }
      if (lose_one_push) events.erase(events.begin());
      for (int i = 0; i < 4; ++i) {  // repetitions
        events.push_back(events[random.Below(events.size())]);
      }
      for (size_t i = events.size(); i > 1; --i) {
        std::swap(events[i - 1], events[random.Below(i)]);
      }
      for (const auto& [rank, what] : events) {
        if (what == kBuckets) {
          Input(rank);
        } else {
          Push(rank, what);
        }
        Settle(&random);
      }
      while (Settle(&random)) {
      }
      if (members_.votes.size() != step) return seen + "stuck";
      absl::StrAppend(&seen, members_.votes.back().SerializeAsString(), "\n");
      engine_->OnCommit(CommitOf(step));
    }
    while (Settle(&random)) {
    }
    absl::StrAppend(&seen, engine_->weight_version().value());
    return seen;
  }

  // One outstanding operation of the neighbours ends, in any order.
  bool Settle(base::Random* random) {
    for (const std::string& line : TakeLog()) {
      std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words[0] == "reduce" || words[0] == "update" ||
          words[0] == "publish") {
        outstanding_.push_back({words[0], std::stoi(words[1])});
      }
    }
    if (outstanding_.empty()) return false;
    const size_t pick = random->Below(outstanding_.size());
    const auto [what, bucket] = outstanding_[pick];
    outstanding_.erase(outstanding_.begin() + pick);
    if (what == "reduce") Reduced(bucket, bucket + 1);
    if (what == "update") Updated(bucket);
    if (what == "publish") Published(bucket);
    return true;
  }

  std::vector<std::pair<std::string, int>> outstanding_;
};

TEST_F(AnyOrder, GivesTheSameDecisions) {
  const std::string expected = Run(1);
  EXPECT_EQ(expected.back(), '4');
  for (uint64_t seed = 2; seed <= 300; ++seed) {
    outstanding_.clear();
    ASSERT_EQ(Run(seed), expected) << seed;
  }
}

TEST_F(AnyOrder, WithoutOnePushThereIsNoCommit) {  // I19, the control
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    outstanding_.clear();
    EXPECT_EQ(Run(seed, /*lose_one_push=*/true), "stuck");
  }
}

// A vote has the errors of its own gradients, and of the weights that they
// were computed from, once those were published.
TEST_F(JobEngineTest, AVoteTellsTheErrorsOfWhatWasSent) {  // I21
  collective_.is_metered = true;
  Make(1);
  const auto sampled = [](const v1::PathErrors& errors) {
    return errors.tensors_size() == 0 ? 0 : errors.tensors(0).sampled();
  };
  const auto last_vote = [&] { return members_.votes.back(); };
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 1);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 0);
  CarryOut(1);
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 2);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 101);
  // The same again after an abort (I20), not after a step that was skipped.
  engine_->OnAbort(AbortOf(2));
  engine_->Start(Generation(2), Step(2), &collective_);
  Compute();
  EXPECT_EQ(sampled(last_vote().weight_errors()), 101);
  engine_->OnCommit(CommitOf(2, /*skipped=*/true));
  Compute();
  EXPECT_EQ(sampled(last_vote().gradient_errors()), 3);
  EXPECT_EQ(sampled(last_vote().weight_errors()), 0);
}

TEST_F(JobEngineTest, TheErrorsOfACommitAreThoseOfTheWholeJob) {  // I21, I25
  Make(1);
  Compute();
  v1::Commit commit = CommitOf(1);
  commit.mutable_gradient_errors()->set_relative_error(0.02);
  commit.mutable_gradient_errors()->set_clipped_share(0.5);
  commit.mutable_weight_errors()->set_relative_error(0.01);
  engine_->OnCommit(commit);
  Updated(0);
  Published(0);
  const auto& quality = engine_->last_summary().quality;
  EXPECT_EQ(quality[0].relative_error, 0.02);
  EXPECT_EQ(quality[0].clipped_share, 0.5);
  EXPECT_EQ(quality[1].relative_error, 0.01);
  // A skipped step measures nothing: what was known stays.
  Compute();
  engine_->OnCommit(CommitOf(2, /*skipped=*/true));
  EXPECT_EQ(engine_->last_summary().quality[0].relative_error, 0);
  EXPECT_EQ(engine_->last_errors(layout::Path::kGradients).relative_error(),
            0.02);
}

// Between two steps, before anything of either may start (I25).
TEST_F(JobEngineTest, ACommitChangesCodecsBeforeAnythingElse) {  // I21
  Make(1);
  Compute();
  TakeLog();
  v1::Commit commit = CommitOf(1);
  v1::CodecChange* const change = commit.add_codec_changes();
  change->set_path(1);
  change->set_tensor(1);
  change->set_to(0);
  collective_.wider[0] = 2;  // of the gradients, since an earlier step
  engine_->OnCommit(commit);
  const CallLog log = TakeLog();
  ASSERT_GE(log.size(), 3u);
  EXPECT_EQ(log[0], "record 1");
  EXPECT_EQ(log[1], "codec 0 for 1");
  Updated(0);
  Published(0);
  EXPECT_EQ(engine_->last_summary().fallbacks, 3);
  // Gradients cross by other codecs from the next step on only.
  collective_.wider = {0, 1};
  Compute();
  v1::CodecChange of_gradients = *change;
  of_gradients.set_path(0);
  commit = CommitOf(2);
  *commit.add_codec_changes() = of_gradients;
  engine_->OnCommit(commit);
  Updated(0);
  Published(0);
  EXPECT_EQ(engine_->last_summary().fallbacks, 1);
}

TEST_F(JobEngineTest, ACodecThatDoesNotFitEndsTheJob) {  // I27
  Make(1);
  Compute();
  collective_.revise_status = absl::DataLossError("of no metered tensor");
  TakeLog();
  engine_->OnCommit(CommitOf(1));
  EXPECT_THAT(TakeLog(), Contains("leave: of no metered tensor"));
  EXPECT_EQ(engine_->counts().committed, 0);
}

// Also where the collective reads no changes any more: its gate is shut.
TEST_F(JobEngineTest, ACodecOnNoPathEndsTheJob) {  // I27
  for (const int path : {-1, 2, 1 << 20}) {
    Make(1);
    Compute();
    v1::Commit commit = CommitOf(1);
    commit.add_codec_changes()->set_path(path);
    TakeLog();
    engine_->OnCommit(commit);
    EXPECT_THAT(TakeLog(),
                ElementsAre(absl::StrCat(
                    "leave: the commit of step 1 changes a codec on path ",
                    path, ", possible are 0 to 1")));
    EXPECT_EQ(engine_->counts().committed, 0);
  }
}

TEST_F(JobEngineTest, SaysWhetherExactWouldBeFaster) {  // I24
  Make(1);
  engine_ = JobEngine::Create({.layout = layout_.get(),
                               .node = NodeRank(1),
                               .clock = &clock_,
                               .state = &state_,
                               .optimizer = &optimizer_,
                               .workers = &workers_,
                               .members = &members_,
                               .exact_bytes = 800});
  engine_->Start(Generation(1), Step(1), &collective_);
  for (int step = 1; step <= 16; ++step) {
    EXPECT_EQ(engine_->exact_ratio(), 0);
    Compute();
    collective_.bytes.payload_sent += 100;
    collective_.exchange_times.wire_seconds += 0.1;
    collective_.exchange_times.exchange_seconds += 1;
    CarryOut(step);
  }
  EXPECT_NEAR(engine_->exact_ratio(), 0.8, 1e-12);
}

TEST_F(JobEngineTest, TheResidualIsThatOfTheLastCommit) {  // I12, I21
  Make(1);
  Compute();
  collective_.residual_norm = 0.25;
  EXPECT_EQ(engine_->residual_norm(), 0);
  CarryOut(1);
  collective_.residual_norm = 0.5;
  EXPECT_EQ(engine_->residual_norm(), 0.25);
}

TEST_F(JobEngineTest, ACommitSaysHowManyUpdatesAreApplied) {  // I12
  Make(1);
  Compute();
  CarryOut(1);
  Compute();
  v1::Commit skipped = CommitOf(2, /*skipped=*/true);
  skipped.set_optimizer_step(1);
  engine_->OnCommit(skipped);
  Compute();
  engine_->OnAbort(AbortOf(3));
  EXPECT_EQ(collective_.optimizer_steps, (std::vector<int64_t>{1, 1}));
}

// ---- Links that are lost. ----

// I20: gradients that were reduced for nobody are reduced again; nothing of a
// step that is not committed has taken effect.
TEST_F(JobEngineTest, AnOpenStepIsReducedAgain) {
  Make(2);
  PushAll();
  Input(0);
  Input(1);
  Reduced(0);
  engine_->Suspend();
  log_.clear();
  engine_->Start(Generation(1), Step(1), &collective_);
  PushAll();
  Input(0);
  Input(1);
  EXPECT_THAT(log_, ElementsAre("open 1/1", "reduce 0@1", "reduce 1@1"));
  Reduced(0);
  Reduced(1);
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(engine_->counts().strays, 0);
}

// What was updated and published stays so; all of it goes out again, and is
// told and counted once.
TEST_F(JobEngineTest, ACommittedStepIsCarriedOutAgain) {
  for (const bool is_finished : {false, true}) {
    Make(2);
    PushAll();
    Input(0);
    Input(1);
    Reduced(0);
    Reduced(1);
    engine_->OnCommit(CommitOf(1));
    Updated(0);
    Published(0);
    if (is_finished) {
      Updated(1);
      Published(1);
    }
    engine_->Suspend();
    if (!is_finished) Updated(1);
    EXPECT_EQ(engine_->updates_in_flight(), 0);
    ASSERT_TRUE(
        engine_->GoOn(Generation(1), CommitOf(1), false, &collective_).ok());
    for (const int b : {0, 1}) Updated(b);
    for (const int b : {0, 1}) Published(b);
    EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
    EXPECT_EQ(engine_->open_step(), Step(2));
    EXPECT_EQ(engine_->counts().committed, 1);
    EXPECT_EQ(engine_->counts().strays, 0);
    EXPECT_THAT(log_, Contains("publish 0@1").Times(2));
  }
}

// The node voted, and did not hear of the commit.
TEST_F(JobEngineTest, ACommitIsAdoptedOnceTheCursorsAreThere) {
  Make(2);
  PushAll();
  Input(0);
  Input(1);
  Reduced(0);
  Reduced(1);
  engine_->Suspend();
  log_.clear();
  engine_->Adopt(Generation(1), CommitOf(1), &collective_);
  Input(0);
  PushAll();
  EXPECT_THAT(log_, ElementsAre("open 1/1"));
  Input(1);
  EXPECT_THAT(log_, Contains("committed 1"));
  EXPECT_THAT(log_, Contains("open 1/2"));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("reduce"))));
  EXPECT_EQ(state_.scalars().cursors,
            std::vector<std::string>({"cursor0", "cursor1"}));
  for (const int b : {0, 1}) Updated(b);
  for (const int b : {0, 1}) Published(b);
  EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
  EXPECT_EQ(engine_->counts().strays, 0);
}

}  // namespace
}  // namespace ballast::engine
