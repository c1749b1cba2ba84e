#include "server/membership/error_report.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::membership {
namespace {

using layout::Path;

void SetLimbs(double value, v1::ExactLimbs* limbs) {
  kernels::ExactSum sum;
  sum.Add(value);
  for (const uint64_t limb : sum.limbs()) limbs->add_limbs(limb);
}

v1::TensorErrors Errors(double error2, double value2, uint64_t sampled = 10,
                        uint64_t clipped = 0) {
  v1::TensorErrors errors;
  SetLimbs(error2, errors.mutable_error2());
  SetLimbs(value2, errors.mutable_value2());
  errors.set_sampled(sampled);
  errors.set_clipped(clipped);
  return errors;
}

v1::Vote VoteOf(const std::vector<v1::TensorErrors>& gradients,
                const std::vector<v1::TensorErrors>& weights = {}) {
  v1::Vote vote;
  vote.set_step(7);
  for (const auto& one : gradients) {
    *vote.mutable_gradient_errors()->add_tensors() = one;
  }
  for (const auto& one : weights) {
    *vote.mutable_weight_errors()->add_tensors() = one;
  }
  return vote;
}

absl::StatusOr<StepErrors> Sum(const MeteredTensors& metered,
                               const std::vector<v1::Vote>& votes) {
  std::vector<const v1::Vote*> pointers;
  for (const v1::Vote& vote : votes) pointers.push_back(&vote);
  return SumErrors(metered, pointers);
}

const MeteredTensors kTwo = {{{TensorId(3), TensorId(5)}, {}}};

TEST(ErrorReportTest, AllNodesCount) {
  const auto errors = Sum(kTwo, {VoteOf({Errors(1, 100), Errors(4, 16, 6, 2)}),
                                 VoteOf({Errors(3, 300), Errors(0, 0, 0)})});
  ASSERT_THAT(errors, base::IsOk());
  const auto& sums = (*errors)[0];
  EXPECT_EQ(sums[0].Relative(), std::sqrt(4.0 / 400));
  EXPECT_EQ(sums[1].Relative(), 0.5);
  const v1::ErrorReport report = MakeReport(kTwo[0], sums);
  EXPECT_EQ(report.relative_error(), std::sqrt(8.0 / 416));
  EXPECT_EQ(report.sampled(), 26);
  EXPECT_EQ(report.clipped_share(), 2.0 / 26);
  ASSERT_EQ(report.worst_size(), 2);
  EXPECT_EQ(report.worst(0).tensor(), 5);
  EXPECT_EQ(report.worst(0).relative_error(), 0.5);
  EXPECT_EQ(report.worst(1).tensor(), 3);
  EXPECT_EQ((*errors)[1].size(), 0);
}

// I9, I25: sums that plain doubles would round in the order of the votes.
TEST(ErrorReportTest, TheOrderOfSumsChangesNoBit) {
  const double values[] = {1, 0x1p-53, 0x1p-53, 0x1p-53, 0x1p-53};
  std::vector<v1::Vote> votes;
  double plain = 0;
  double reversed = 0;
  for (int i = 0; i < 5; ++i) {
    votes.push_back(VoteOf({Errors(values[i], values[4 - i]), Errors(0, 1)}));
    plain += values[i];
    reversed += values[4 - i];
  }
  EXPECT_NE(plain, reversed);  // the control
  const auto one = Sum(kTwo, votes);
  const auto other = Sum(kTwo, {votes.rbegin(), votes.rend()});
  ASSERT_THAT(one, base::IsOk());
  EXPECT_EQ((*one)[0][0].error2, (*other)[0][0].error2);
  EXPECT_EQ((*one)[0][0].Relative(), 1);
}

TEST(ErrorReportTest, WithoutValuesThereIsNoError) {
  const auto errors = Sum(kTwo, {VoteOf({Errors(0, 0), Errors(0, 0, 0)})});
  const v1::ErrorReport report = MakeReport(kTwo[0], (*errors)[0]);
  EXPECT_EQ(report.relative_error(), 0);
  EXPECT_EQ(report.worst_size(), 1);  // the other was not sampled
  EXPECT_EQ(MakeReport({}, {}).worst_size(), 0);
}

TEST(ErrorReportTest, WeightsAreOfTheVersionBefore) {
  const MeteredTensors metered = {{{}, {TensorId(1)}}};
  const auto some = Sum(metered, {VoteOf({}, {Errors(1, 4)})});
  EXPECT_EQ((*some)[1][0].Relative(), 0.5);
  // Nothing was published before the first step.
  const auto none = Sum(metered, {VoteOf({}), VoteOf({})});
  ASSERT_THAT(none, base::IsOk());
  EXPECT_TRUE((*none)[1].empty());
}

// A daemon that was replaced may not know what it sent in the step before: no
// node's sums count then, and no step fails for it.
TEST(ErrorReportTest, WeightErrorsThatANodeForgotAreKnownToNone) {
  const MeteredTensors metered = {{{}, {TensorId(1)}}};
  const v1::Vote known = VoteOf({}, {Errors(1, 4)});
  for (const size_t forgetful : {0, 1, 2}) {
    std::vector<v1::Vote> votes(3, known);
    ASSERT_EQ((*Sum(metered, votes))[1].size(), 1u);
    votes[forgetful] = VoteOf({});
    const auto errors = Sum(metered, votes);
    ASSERT_THAT(errors, base::IsOk()) << forgetful;
    EXPECT_TRUE((*errors)[1].empty()) << forgetful;
    // What the others say is looked at all the same (I27).
    votes[(forgetful + 1) % 3] = VoteOf({}, {Errors(1, 4), Errors(1, 4)});
    EXPECT_THAT(Sum(metered, votes).status(),
                base::StatusIs(absl::StatusCode::kDataLoss, "of weights"));
  }
  // Gradients are of the step that is voted on: nobody can have forgotten.
  EXPECT_THAT(
      Sum(kTwo, {VoteOf({Errors(1, 4), Errors(1, 4)}), VoteOf({})}).status(),
      base::StatusIs(absl::StatusCode::kDataLoss, "node 1 has errors"));
}

TEST(ErrorReportTest, OfManyTensorsThoseWhoseTurnItIs) {
  MeteredTensors metered;
  for (int i = 0; i < layout::kMaxMeteredTensors + 1; ++i) {
    metered[0].emplace_back(i);
  }
  v1::Vote vote = VoteOf({Errors(1, 4)});  // step 7: the second window
  vote.mutable_gradient_errors()->set_first(layout::kMaxMeteredTensors);
  const auto errors = Sum(metered, {vote});
  ASSERT_THAT(errors, base::IsOk());
  EXPECT_EQ(MakeReport(metered[0], (*errors)[0]).worst(0).tensor(),
            layout::kMaxMeteredTensors);
  EXPECT_FALSE(Sum(metered, {VoteOf({Errors(1, 4)})}).ok());
}

// I27: whatever a node sends, it is refused or a sum.
TEST(ErrorReportTest, HostileVotesAreRefusedByName) {
  std::vector<v1::Vote> bad(7, VoteOf({Errors(1, 4), Errors(1, 4)}));
  const auto first = [](v1::Vote& vote) {
    return vote.mutable_gradient_errors()->mutable_tensors(0);
  };
  first(bad[0])->mutable_error2()->set_first(1);  // 34 limbs from 1 on
  first(bad[1])->mutable_value2()->set_first(0xffffffff);
  first(bad[2])->mutable_value2()->add_limbs(1);
  first(bad[3])->set_clipped(11);
  first(bad[4])->set_sampled(~uint64_t{0});
  bad[5].mutable_gradient_errors()->add_tensors();
  first(bad[6])->mutable_narrower_error2()->set_first(35);
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THAT(
        Sum(kTwo, {VoteOf({Errors(1, 4), Errors(1, 4)}), bad[i]}).status(),
        base::StatusIs(absl::StatusCode::kDataLoss,
                       "node 1 has errors of gradients"))
        << i;
  }
  v1::Vote saturated = VoteOf({Errors(1, 4), Errors(1, 4)});
  for (int i = 0; i < 34; ++i) {
    first(saturated)->mutable_error2()->set_limbs(i, ~uint64_t{0});
  }
  EXPECT_TRUE(Sum(kTwo, {saturated}).ok());
}

}  // namespace
}  // namespace ballast::membership
