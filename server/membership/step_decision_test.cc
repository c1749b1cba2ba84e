#include "server/membership/step_decision.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"

namespace ballast::membership {
namespace {

using ::testing::HasSubstr;

v1::Vote VoteWith(double norm2, double lr = 0.1) {
  v1::Vote vote;
  vote.set_step(7);
  kernels::ExactSum sum;
  sum.Add(norm2);
  for (uint64_t limb : sum.limbs()) vote.add_norm2_limbs(limb);
  vote.add_groups()->set_lr(lr);
  return vote;
}

StepRules Rules(double clipping = 0) {
  return {.optimizer = kernels::OptimizerKind::kSgd,
          .gradient_clipping = clipping,
          .optimizer_step = 5,
          .local_world_size = 2};
}

v1::Commit CommitOf(const StepRules& rules, std::vector<v1::Vote> votes) {
  std::vector<const v1::Vote*> pointers;
  for (const v1::Vote& vote : votes) pointers.push_back(&vote);
  StepErrors errors;
  const auto what = DecideStep(rules, pointers, &errors);
  EXPECT_TRUE(std::holds_alternative<v1::Commit>(what));
  return std::get<v1::Commit>(what);
}

v1::Abort AbortOf(std::vector<v1::Vote> votes) {
  std::vector<const v1::Vote*> pointers;
  for (const v1::Vote& vote : votes) pointers.push_back(&vote);
  StepErrors errors;
  const auto what = DecideStep(Rules(), pointers, &errors);
  EXPECT_TRUE(std::holds_alternative<v1::Abort>(what));
  return std::get<v1::Abort>(what);
}

kernels::StepScalars ScalarsOf(const v1::Commit& commit) {
  kernels::StepScalars scalars;
  EXPECT_EQ(commit.scalars(0).size(), sizeof(scalars));
  std::memcpy(&scalars, commit.scalars(0).data(), sizeof(scalars));
  return scalars;
}

TEST(DecideStepTest, NormIsTheRootOfAllNodesSquares) {  // I15
  const v1::Commit commit = CommitOf(Rules(), {VoteWith(9), VoteWith(16)});
  EXPECT_EQ(commit.step(), 7);
  EXPECT_FALSE(commit.skipped());
  EXPECT_EQ(commit.grad_norm(), 5);
  EXPECT_EQ(commit.clip_factor(), 1);
  EXPECT_EQ(commit.optimizer_step(), 6);
}

TEST(DecideStepTest, NormDoesNotDependOnTheOrderOfNodes) {  // I9
  // A plain double sum loses the ones against 1e17, in one order only.
  std::vector<double> parts(33, 1.0);
  parts[0] = 1e17;
  std::vector<v1::Vote> forward;
  std::vector<v1::Vote> backward;
  double plain_forward = 0;
  double plain_backward = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    forward.push_back(VoteWith(parts[i]));
    plain_forward += parts[i];
    backward.push_back(VoteWith(parts[parts.size() - 1 - i]));
    plain_backward += parts[parts.size() - 1 - i];
  }
  EXPECT_EQ(CommitOf(Rules(), forward).grad_norm(),
            CommitOf(Rules(), backward).grad_norm());
  EXPECT_NE(plain_forward, plain_backward);  // the control
}

TEST(DecideStepTest, ClipsAsPyTorchDoes) {
  const v1::Commit commit = CommitOf(Rules(1.0), {VoteWith(16), VoteWith(0)});
  const float expected = static_cast<float>(1.0 / (4.0 + 1e-6));
  EXPECT_EQ(commit.clip_factor(), expected);
  EXPECT_EQ(ScalarsOf(commit).clip, expected);
  EXPECT_EQ(CommitOf(Rules(5.0), {VoteWith(16)}).clip_factor(), 1);
}

TEST(DecideStepTest, TheNormOfAStepComesBeforeTheJobs) {
  for (const double job : {0.0, 1.0, 4.0}) {
    v1::Vote vote = VoteWith(25);
    EXPECT_EQ(CommitOf(Rules(job), {vote}).clip_factor(),
              kernels::ClipFactor(25, job));
    vote.mutable_groups(0)->set_max_norm(2);
    EXPECT_EQ(CommitOf(Rules(job), {vote}).clip_factor(),
              kernels::ClipFactor(25, 2));
  }
}

TEST(DecideStepTest, NodesWithOtherNormsAbort) {
  v1::Vote other = VoteWith(25);
  other.mutable_groups(0)->set_max_norm(2);
  EXPECT_THAT(AbortOf({VoteWith(25), other}).text(),
              HasSubstr("max_norm is 0 on rank 0 but 2 on rank 2"));
}

TEST(DecideStepTest, AStepThatLoadsUpdatesNothing) {
  for (const int load : {1, 2}) {
    v1::Vote vote = VoteWith(25);
    vote.mutable_groups(0)->set_load(load);
    vote.set_non_finite(true);  // they are weights, no gradients
    const v1::Commit commit = CommitOf(Rules(1.0), {vote, vote});
    EXPECT_EQ(commit.load(), load);
    EXPECT_TRUE(commit.skipped());
    EXPECT_EQ(commit.optimizer_step(), load == 1 ? Rules().optimizer_step : 0);
    EXPECT_EQ(commit.scalars_size(), 0);
    EXPECT_EQ(commit.grad_norm(), 0);
  }
  EXPECT_EQ(CommitOf(Rules(), {VoteWith(25)}).load(), 0);
}

TEST(DecideStepTest, NodesThatLoadAndOthersThatDoNotAbort) {
  v1::Vote other = VoteWith(25);
  other.mutable_groups(0)->set_load(1);
  EXPECT_THAT(AbortOf({VoteWith(25), other}).text(),
              HasSubstr("load is 0 on rank 0 but 1 on rank 2"));
}

TEST(DecideStepTest, CarriesWhatRank0Commits) {
  v1::Vote first = VoteWith(25);
  first.set_rank0_cursor("rank 0's");
  v1::Vote other = VoteWith(25);
  other.set_rank0_cursor("nobody's");
  EXPECT_EQ(CommitOf(Rules(), {first, other}).rank0_cursor(), "rank 0's");
  other.set_non_finite(true);
  EXPECT_EQ(CommitOf(Rules(), {first, other}).rank0_cursor(), "rank 0's");
}

TEST(DecideStepTest, CarriesTheBitsOfTheScalars) {
  const v1::Commit commit = CommitOf(Rules(), {VoteWith(1, 0.25)});
  EXPECT_EQ(ScalarsOf(commit),
            kernels::PrepareScalars(
                kernels::OptimizerKind::kSgd,
                {.lr = 0.25, .beta1 = 0, .beta2 = 0, .eps = 0}, 6, 1.0f));
}

TEST(DecideStepTest, NonFiniteAnywhereSkipsEverywhere) {  // I10
  v1::Vote bad = VoteWith(4);
  bad.set_non_finite(true);
  const v1::Commit commit = CommitOf(Rules(), {VoteWith(9), bad});
  EXPECT_TRUE(commit.skipped());
  EXPECT_TRUE(std::isnan(commit.grad_norm()));
  EXPECT_EQ(commit.optimizer_step(), 5);  // not advanced
  EXPECT_EQ(commit.scalars_size(), 0);
}

TEST(CheckSameWeightsTest, NamesTheNodesThatDiffer) {  // I2
  std::vector<v1::Vote> votes(3, VoteWith(1));
  const auto check = [&votes] {
    return CheckSameWeights(
        std::vector<const v1::Vote*>{&votes[0], &votes[1], &votes[2]});
  };
  EXPECT_TRUE(check().ok());  // nobody keeps checksums
  for (v1::Vote& vote : votes) vote.set_published_digest(0xabc);
  EXPECT_TRUE(check().ok());
  votes[1].set_published_digest(0xabd);
  EXPECT_EQ(check().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(check().message(),
            "the published weights of version 6 are not the same everywhere: "
            "0000000000000abc on node 0, node 2; 0000000000000abd on node 1");
}

TEST(DecideStepTest, RefusalAborts) {
  v1::Vote refusal;
  refusal.set_step(7);
  refusal.set_refusal_code(
      static_cast<int>(absl::StatusCode::kInvalidArgument));
  refusal.set_refusal_text("lr differs");
  const v1::Abort abort = AbortOf({VoteWith(1), refusal});
  EXPECT_EQ(abort.step(), 7);
  EXPECT_EQ(abort.text(), "lr differs");
}

TEST(DecideStepTest, NodesWithOtherValuesAbortAndAreNamed) {
  const v1::Abort abort = AbortOf({VoteWith(1, 0.001), VoteWith(1, 0.002)});
  EXPECT_EQ(abort.text(),
            "param group 0: lr is 0.001 on rank 0 but 0.002 on rank 2; all "
            "ranks must pass the same value");
}

TEST(DecideStepTest, OneBitIsADifference) {
  const double lr = 0.1;
  const v1::Abort abort =
      AbortOf({VoteWith(1, lr), VoteWith(1, std::nextafter(lr, 1))});
  EXPECT_THAT(abort.text(), HasSubstr("0.10000000000000002"));
}

TEST(DecideStepTest, MalformedVoteAborts) {  // I27
  v1::Vote shortened = VoteWith(1);
  shortened.mutable_norm2_limbs()->Truncate(3);
  EXPECT_THAT(AbortOf({VoteWith(1), shortened}).text(), HasSubstr("3 norm"));
  v1::Vote more = VoteWith(1);
  more.add_groups();
  EXPECT_THAT(AbortOf({VoteWith(1), more}).text(), HasSubstr("param groups"));
}

TEST(DecideStepTest, ACommitTellsTheErrorOfWhatWasSent) {  // I21
  const MeteredTensors metered = {{{TensorId(4)}, {}}};
  StepRules rules = Rules();
  rules.metered = &metered;
  v1::Vote vote = VoteWith(1);
  v1::TensorErrors* const errors =
      vote.mutable_gradient_errors()->add_tensors();
  errors->mutable_error2()->set_first(16);
  errors->mutable_error2()->add_limbs(1);
  errors->mutable_value2()->set_first(16);
  errors->mutable_value2()->add_limbs(16);
  errors->set_sampled(1);
  const v1::Commit commit = CommitOf(rules, {vote, vote});
  EXPECT_EQ(commit.gradient_errors().relative_error(), 0.25);
  EXPECT_EQ(commit.gradient_errors().worst(0).tensor(), 4);
  EXPECT_FALSE(commit.has_weight_errors());
  // Of a skipped step nothing is known.
  v1::Vote bad = vote;
  bad.set_non_finite(true);
  EXPECT_FALSE(CommitOf(rules, {vote, bad}).has_gradient_errors());
  // A node that measures something else cannot take part.
  const v1::Vote silent = VoteWith(1);
  const std::vector<const v1::Vote*> votes = {&vote, &silent};
  StepErrors sums;
  const auto what = DecideStep(rules, votes, &sums);
  ASSERT_TRUE(std::holds_alternative<v1::Abort>(what));
  EXPECT_THAT(std::get<v1::Abort>(what).text(), HasSubstr("node 1 has errors"));
}

}  // namespace
}  // namespace ballast::membership
