#include "server/engine/exact_estimate.h"

#include "gtest/gtest.h"

namespace ballast::engine {
namespace {

double RatioOf(uint64_t exact_bytes, uint64_t sent, double wire,
               double exchange) {
  ExactEstimate estimate(exact_bytes);
  for (size_t i = 0; i < ExactEstimate::kSteps; ++i) {
    EXPECT_EQ(estimate.ratio(), 0) << "not known before";
    estimate.Add(sent, wire, exchange);
  }
  return estimate.ratio();
}

TEST(ExactEstimateTest, OnASlowLinkQuantizingIsWorthIt) {  // I24
  // The wire is all there is: eight times the bytes, eight times as long.
  EXPECT_DOUBLE_EQ(RatioOf(800, 100, 1.0, 1.0), 8);
}

TEST(ExactEstimateTest, OnAFastLinkItIsNot) {  // I24
  // A tenth of the time is wire: eight times of that is less than all.
  EXPECT_DOUBLE_EQ(RatioOf(800, 100, 0.1, 1.0), 0.8);
}

TEST(ExactEstimateTest, WithoutFiguresItSaysNothing) {
  EXPECT_EQ(RatioOf(0, 100, 1, 1), 0);
  EXPECT_EQ(RatioOf(800, 0, 1, 1), 0);
  EXPECT_EQ(RatioOf(800, 100, 0, 0), 0);
}

TEST(ExactEstimateTest, OldStepsAreForgotten) {
  ExactEstimate estimate(800);
  estimate.Add(100, 1000.0, 1.0);
  for (size_t i = 0; i < ExactEstimate::kSteps; ++i) {
    estimate.Add(100, 0.1, 1.0);
  }
  EXPECT_DOUBLE_EQ(estimate.ratio(), 0.8);
}

}  // namespace
}  // namespace ballast::engine
