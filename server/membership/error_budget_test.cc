#include "server/membership/error_budget.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::membership {
namespace {

using layout::CodecId;

// One tensor, number 7, on one path.
class ErrorBudgetTest : public ::testing::Test {
 protected:
  void Make(CodecId policy, layout::Path path = layout::Path::kGradients) {
    path_ = static_cast<size_t>(path);
    rules_ = {.max_relative_error = 0.1};
    rules_.codecs[path_] = {policy};
    metered_ = {};
    metered_[path_] = {TensorId(7)};
    state_ = InitialBudgetState(rules_);
  }

  // What changes after a step with these errors: "int4 -> int8", or "".
  std::string Step(double relative, double narrower = 1) {
    StepErrors errors;
    TensorErrorSum& sum = errors[path_].emplace_back();
    sum.value2.Add(1);
    sum.error2.Add(relative * relative);
    sum.narrower_error2.Add(narrower * narrower);
    sum.sampled = 1;
    const std::vector<v1::CodecChange> changes =
        DecideBudget(rules_, metered_, errors, &state_);
    if (changes.empty()) return "";
    EXPECT_EQ(changes.size(), 1u);
    EXPECT_EQ(changes[0].tensor(), 7);
    EXPECT_EQ(changes[0].path(), static_cast<int>(path_));
    return std::string(layout::Name(CodecId(changes[0].from()))) + " -> " +
           std::string(layout::Name(CodecId(changes[0].to())));
  }

  size_t path_ = 0;
  BudgetRules rules_;
  MeteredTensors metered_;
  BudgetState state_;
};

TEST_F(ErrorBudgetTest, AnErrorBeyondItWidensStepByStep) {
  Make(CodecId::kInt2, layout::Path::kWeights);
  EXPECT_EQ(Step(0.09), "");
  EXPECT_EQ(Step(0.11), "int2 -> int4");
  EXPECT_EQ(Step(0.11), "int4 -> int8");
  EXPECT_EQ(Step(0.09), "");
  EXPECT_EQ(Step(0.11), "int8 -> none");
  EXPECT_EQ(Step(0.11), "");  // nothing is wider
}

TEST_F(ErrorBudgetTest, WhatWouldDoForLongIsTakenAgain) {
  Make(CodecId::kInt4);
  EXPECT_EQ(Step(0.2), "int4 -> int8");
  EXPECT_EQ(Step(0.2), "int8 -> none");
  for (int i = 1; i < kCalmSteps; ++i) ASSERT_EQ(Step(0, 0.05), "") << i;
  EXPECT_EQ(Step(0, 0.05), "none -> int8");
  for (int i = 1; i < kCalmSteps; ++i) ASSERT_EQ(Step(0, 0.05), "") << i;
  EXPECT_EQ(Step(0, 0.05), "int8 -> int4");
  // Never below the policy, however small the error.
  for (int i = 0; i < 3 * kCalmSteps; ++i) ASSERT_EQ(Step(0, 0), "") << i;
}

TEST_F(ErrorBudgetTest, CalmIsCountedWithoutABreakAndWithAMargin) {
  Make(CodecId::kInt4);
  EXPECT_EQ(Step(0.2), "int4 -> int8");
  for (int i = 1; i < kCalmSteps; ++i) ASSERT_EQ(Step(0, 0.05), "");
  EXPECT_EQ(Step(0, 0.051), "");  // within the budget, but hardly
  for (int i = 1; i < kCalmSteps; ++i) ASSERT_EQ(Step(0, 0.05), "");
  EXPECT_EQ(Step(0, 0.05), "int8 -> int4");
}

TEST_F(ErrorBudgetTest, AStepWithoutASampleCountsAsNothing) {
  Make(CodecId::kInt4);
  EXPECT_EQ(Step(0.2), "int4 -> int8");
  StepErrors errors;
  errors[0].emplace_back();
  for (int i = 0; i < 2 * kCalmSteps; ++i) {
    EXPECT_TRUE(DecideBudget(rules_, metered_, errors, &state_).empty());
  }
}

TEST_F(ErrorBudgetTest, WithoutABudgetNothingChanges) {  // the control
  Make(CodecId::kInt4);
  rules_.max_relative_error = 0;
  EXPECT_EQ(Step(0.9), "");
}

}  // namespace
}  // namespace ballast::membership
