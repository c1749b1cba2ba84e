#include "server/daemon/resume_council.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::daemon {
namespace {

using testing::HasSubstr;

v1::ResumeOffer Holding(int64_t step, std::vector<int> shards, int num_shards) {
  v1::ResumeOffer offer;
  if (num_shards == 0) return offer;
  v1::HeldReplica* const held = offer.add_held();
  held->set_step(step);
  held->set_checksum(static_cast<uint64_t>(step));
  held->set_manifest_bytes(100);
  held->set_num_shards(num_shards);
  for (const int shard : shards) held->add_shards(shard);
  offer.set_num_nodes(num_shards);  // as node 0 of them
  return offer;
}

v1::ResumeOffer Loaded(v1::ResumeOffer offer, int round) {
  offer.set_round(round);
  offer.set_loaded(true);
  return offer;
}

v1::ResumeOffer Damaged(v1::ResumeOffer offer, int round, int64_t step,
                        int shard, int node) {
  offer.set_round(round);
  offer.set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  offer.set_text("checksum");
  offer.mutable_bad()->set_checksum(static_cast<uint64_t>(step));
  offer.mutable_bad()->set_shard(shard);
  offer.mutable_bad()->set_node(node);
  return offer;
}

ResumeCouncil::Options Two() {
  ResumeCouncil::Options options;
  options.job = "job";
  options.num_nodes = 2;
  return options;
}

TEST(ResumeCouncilTest, WaitsForAllAndGoesWhenAllHaveLoaded) {
  ResumeCouncil council(Two());
  const auto zero = Holding(7, {0, 1}, 2);
  EXPECT_EQ(council.choice(), nullptr);
  council.OnOffer(NodeRank(0), zero);
  EXPECT_EQ(council.choice(), nullptr);
  EXPECT_EQ(council.WaitingFor(), "node 1 has not said what it holds");
  council.OnOffer(NodeRank(1), {});
  ASSERT_NE(council.choice(), nullptr);
  EXPECT_EQ(council.choice()->from(), v1::ResumeChoice::REPLICA);
  EXPECT_EQ(council.choice()->step(), 7);
  EXPECT_EQ(council.choice()->holders_size(), 3);
  EXPECT_FALSE(council.choice()->go());
  council.OnOffer(NodeRank(0), Loaded(zero, 1));
  council.OnOffer(NodeRank(1), {});  // repeated, and late
  EXPECT_FALSE(council.choice()->go());
  EXPECT_EQ(council.WaitingFor(), "node 1 has not read the state yet");
  council.OnOffer(NodeRank(1), Loaded({}, 1));
  EXPECT_TRUE(council.choice()->go());
  EXPECT_EQ(council.choice()->round(), 1);
}

TEST(ResumeCouncilTest, TheNewerOfReplicaAndFiles) {
  for (const int64_t stored : {6, 7, 8}) {
    ResumeCouncil::Options options = Two();
    options.stored_step = stored;
    ResumeCouncil council(options);
    council.OnOffer(NodeRank(0), Holding(7, {0, 1}, 2));
    council.OnOffer(NodeRank(1), {});
    EXPECT_EQ(council.choice()->from(),
              stored > 7 ? v1::ResumeChoice::FILES : v1::ResumeChoice::REPLICA);
    EXPECT_EQ(council.choice()->step(), std::max<int64_t>(stored, 7));
  }
}

TEST(ResumeCouncilTest, WithoutADamagedCopyAnotherRound) {
  ResumeCouncil council(Two());
  const auto both = Holding(7, {0, 1}, 2);
  council.OnOffer(NodeRank(0), both);
  council.OnOffer(NodeRank(1), both);
  council.OnOffer(NodeRank(0), Damaged(both, 1, 7, 1, 0));
  ASSERT_EQ(council.choice()->round(), 2);
  EXPECT_EQ(council.choice()->holders(1).nodes_size(), 1);
  EXPECT_EQ(council.choice()->holders(1).nodes(0), 1);
  council.OnOffer(NodeRank(0), Damaged(both, 1, 7, 1, 0));  // repeated
  EXPECT_EQ(council.choice()->round(), 2);
  council.OnOffer(NodeRank(1), Loaded(both, 1));  // of the old round
  council.OnOffer(NodeRank(0), Loaded(both, 2));
  EXPECT_FALSE(council.choice()->go());
  council.OnOffer(NodeRank(1), Damaged(both, 2, 7, 1, 1));
  // Nothing is left, and that is said.
  EXPECT_EQ(council.choice()->code(),
            static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_THAT(council.choice()->text(), HasSubstr("2 copies are damaged"));
}

TEST(ResumeCouncilTest, ThenFilesAreGoodEnough) {
  ResumeCouncil::Options options = Two();
  options.stored_step = 3;
  ResumeCouncil council(options);
  council.OnOffer(NodeRank(0), Holding(7, {0, 1}, 2));
  council.OnOffer(NodeRank(1), {});
  council.OnOffer(NodeRank(1), Damaged({}, 1, 7, 2, 0));
  EXPECT_EQ(council.choice()->from(), v1::ResumeChoice::FILES);
  EXPECT_EQ(council.choice()->round(), 2);
}

TEST(ResumeCouncilTest, OtherFailuresEndIt) {
  ResumeCouncil council(Two());
  council.OnOffer(NodeRank(0), Holding(7, {0, 1}, 2));
  council.OnOffer(NodeRank(1), {});
  v1::ResumeOffer failed;
  failed.set_round(1);
  failed.set_code(3);
  failed.set_text("tensor \"a\" has another shape");
  council.OnOffer(NodeRank(1), failed);
  EXPECT_EQ(council.choice()->code(), 3);
  EXPECT_EQ(council.choice()->text(), "node 1: tensor \"a\" has another shape");
  // The same copy again is no progress.
  ResumeCouncil other(Two());
  other.OnOffer(NodeRank(0), Holding(7, {0, 1}, 2));
  other.OnOffer(NodeRank(1), Holding(7, {0, 1}, 2));
  other.OnOffer(NodeRank(1), Damaged({}, 1, 7, 0, 1));
  other.OnOffer(NodeRank(1), Damaged({}, 2, 7, 0, 1));
  EXPECT_NE(other.choice()->code(), 0);
}

TEST(ResumeCouncilTest, NothingIsInitialValuesOrSaid) {
  ResumeCouncil::Options options = Two();
  const auto decide = [&] {
    ResumeCouncil council(options);
    council.OnOffer(NodeRank(0), {});
    council.OnOffer(NodeRank(1), {});
    return *council.choice();
  };
  EXPECT_EQ(decide().code(), 0);
  EXPECT_EQ(decide().from(), v1::ResumeChoice::NOTHING);
  options.must_resume = true;
  EXPECT_THAT(decide().text(), HasSubstr("any of its 2 nodes, and resume="));
  options.must_resume = false;
  options.has_initial_values = false;
  EXPECT_THAT(decide().text(), HasSubstr("rank 0 must give"));
}

// A job that had come to step 7 does not begin at step 1 unasked. (Issue 5.)
TEST(ResumeCouncilTest, WhatIsNotWholeIsNotBegunAnew) {  // I20
  for (const bool must_resume : {false, true}) {
    for (const bool has_initial_values : {false, true}) {
      ResumeCouncil::Options options = Two();
      options.must_resume = must_resume;
      options.has_initial_values = has_initial_values;
      ResumeCouncil council(options);
      council.OnOffer(NodeRank(0), Holding(7, {0, 2}, 3));
      v1::ResumeOffer none;  // of a node that was in it, and has lost its copy
      none.set_node(1);
      none.set_num_nodes(3);
      council.OnOffer(NodeRank(1), none);
      ASSERT_NE(council.choice(), nullptr);
      EXPECT_EQ(council.choice()->code(),
                static_cast<int>(absl::StatusCode::kDataLoss));
      EXPECT_THAT(council.choice()->text(),
                  HasSubstr("of job \"job\" held, up to step 7, is not whole"));
      EXPECT_THAT(council.choice()->text(), HasSubstr("resume=\"never\""));
      EXPECT_THAT(
          council.choice()->text(),
          HasSubstr("node 0 has of step 7 shards 0, 2; node 1 has nothing"));
    }
  }
  // Files are something to go on from.
  ResumeCouncil::Options options = Two();
  options.stored_step = 3;
  ResumeCouncil council(options);
  auto held = Holding(7, {0, 1}, 2);
  held.mutable_held(0)->clear_shards();
  council.OnOffer(NodeRank(0), held);
  council.OnOffer(NodeRank(1), {});
  EXPECT_EQ(council.choice()->from(), v1::ResumeChoice::FILES);
}

TEST(ResumeCouncilTest, IsBounded) {  // I27
  ResumeCouncil council(Two());
  v1::ResumeOffer many;
  many.set_num_nodes(1);
  for (int i = 0; i < 10'000; ++i) {
    *many.add_held() = Holding(100 + i, {0}, 1).held(0);
  }
  council.OnOffer(NodeRank(1), many);
  council.OnOffer(NodeRank(0), {});
  EXPECT_EQ(council.choice()->step(), 100 + kMaxOfferedSets - 1);
}

TEST(ResumeCouncilTest, AMinorityWaitsForTheOperator) {  // I19
  ResumeCouncil council(Two());
  EXPECT_EQ(council.Adopt().code(), absl::StatusCode::kFailedPrecondition);
  auto held = Holding(7, {0, 1}, 2);
  held.set_node(1);
  council.OnOffer(NodeRank(0), held);
  council.OnOffer(NodeRank(1), {});
  council.OnOffer(NodeRank(1), {});  // repeated
  EXPECT_EQ(council.choice(), nullptr);
  EXPECT_EQ(council.WaitingFor(), council.blocked());
  EXPECT_THAT(
      council.blocked(),
      HasSubstr("node 1 of the 2 that ran job \"job\" at step 7 may not "
                "go on alone"));
  EXPECT_TRUE(council.Adopt().ok());
  ASSERT_NE(council.choice(), nullptr);
  EXPECT_EQ(council.choice()->from(), v1::ResumeChoice::REPLICA);
  EXPECT_EQ(council.choice()->round(), 1);
  EXPECT_EQ(council.blocked(), "");
  // Another round needs no other word.
  council.OnOffer(NodeRank(0), Damaged(held, 1, 7, 0, 0));
  EXPECT_EQ(council.choice()->code(),
            static_cast<int>(absl::StatusCode::kDataLoss));
}

// Neither anew nor from files.
TEST(ResumeCouncilTest, AMinorityDoesNotGoOnFromFilesEither) {
  ResumeCouncil::Options options = Two();
  options.stored_step = 9;
  ResumeCouncil council(options);
  auto held = Holding(7, {2, 1}, 3);
  held.set_node(2);
  council.OnOffer(NodeRank(0), {});
  council.OnOffer(NodeRank(1), held);
  EXPECT_EQ(council.choice(), nullptr);
  ASSERT_TRUE(council.Adopt().ok());
  EXPECT_EQ(council.choice()->from(), v1::ResumeChoice::FILES);
}

}  // namespace
}  // namespace ballast::daemon
