#include "kernels/hyper_parameters.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

TEST(HyperParametersTest, StateArraysByKind) {
  EXPECT_EQ(StateArrays(OptimizerKind::kSgd, false), 0);
  EXPECT_EQ(StateArrays(OptimizerKind::kSgd, true), 1);
  EXPECT_EQ(StateArrays(OptimizerKind::kAdam, false), 2);
  EXPECT_EQ(StateArrays(OptimizerKind::kAdamW, true), 2);
  EXPECT_EQ(StateArrays(OptimizerKind::kLion, false), 1);
  EXPECT_EQ(StateArrays(OptimizerKind::kAdagrad, false), 1);
  EXPECT_FALSE(IsKnown(static_cast<OptimizerKind>(0)));
  EXPECT_FALSE(IsKnown(static_cast<OptimizerKind>(6)));
}

// Bias corrections by repeated multiplication, without pow.
TEST(HyperParametersTest, AdamBiasCorrections) {
  const HyperParameters hyper{.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95};
  double power1 = 1;
  double power2 = 1;
  for (int step = 1; step <= 1000; ++step) {
    power1 *= hyper.beta1;
    power2 *= hyper.beta2;
    const StepScalars s = PrepareScalars(OptimizerKind::kAdam, hyper, step, 1);
    EXPECT_FLOAT_EQ(s.step_size, hyper.lr / (1 - power1));
    EXPECT_FLOAT_EQ(s.inv_sqrt_bias2, 1 / std::sqrt(1 - power2));
  }
}

TEST(HyperParametersTest, AdamAndAdamWDecayInDifferentPlaces) {
  const HyperParameters hyper{.lr = 0.1, .weight_decay = 0.01};
  const auto adam = PrepareScalars(OptimizerKind::kAdam, hyper, 3, 0.5f);
  EXPECT_EQ(adam.weight_decay, 0.01f);
  EXPECT_EQ(adam.decay, 1.0f);
  EXPECT_EQ(adam.clip, 0.5f);
  const auto adamw = PrepareScalars(OptimizerKind::kAdamW, hyper, 3, 0.5f);
  EXPECT_EQ(adamw.weight_decay, 0.0f);
  EXPECT_EQ(adamw.decay, 0.999f);
}

TEST(HyperParametersTest, ComplementsAreRoundedOnceFromDouble) {
  const HyperParameters hyper{.beta1 = 0.9, .beta2 = 0.999};
  const auto s = PrepareScalars(OptimizerKind::kAdam, hyper, 1, 1);
  EXPECT_EQ(s.one_minus_beta1, static_cast<float>(1 - 0.9));
  EXPECT_NE(s.one_minus_beta2, 1 - s.beta2);  // what fp32 would give
}

TEST(HyperParametersTest, SgdFlags) {
  const auto flags = [](double momentum, bool nesterov, int64_t step) {
    return PrepareScalars(OptimizerKind::kSgd,
                          {.momentum = momentum, .nesterov = nesterov}, step, 1)
        .flags;
  };
  EXPECT_EQ(flags(0, false, 1), 0);
  EXPECT_EQ(flags(0.9, false, 1), kFlagMomentum | kFlagFirstStep);
  EXPECT_EQ(flags(0.9, false, 2), kFlagMomentum);
  EXPECT_EQ(flags(0.9, true, 2), kFlagMomentum | kFlagNesterov);
}

TEST(HyperParametersTest, AdagradsStepSizeFallsFromTheSecondStepOn) {
  const HyperParameters hyper{
      .lr = 0.5, .lr_decay = 0.25, .initial_accumulator_value = 0.125};
  const auto first = PrepareScalars(OptimizerKind::kAdagrad, hyper, 1, 1);
  EXPECT_EQ(first.step_size, 0.5f);
  EXPECT_EQ(first.flags, kFlagFirstStep);
  EXPECT_EQ(first.initial, 0.125f);
  const auto fifth = PrepareScalars(OptimizerKind::kAdagrad, hyper, 5, 1);
  EXPECT_EQ(fifth.step_size, 0.25f);
  EXPECT_EQ(fifth.flags, 0);
}

TEST(HyperParametersTest, LionHasNoBiasCorrection) {
  const HyperParameters hyper{.lr = 0.5, .beta2 = 0.99, .weight_decay = 0.25};
  for (const int64_t step : {1, 100}) {
    const auto s = PrepareScalars(OptimizerKind::kLion, hyper, step, 1);
    EXPECT_EQ(s.step_size, 0.5f);
    EXPECT_EQ(s.decay, 0.875f);
    EXPECT_EQ(s.weight_decay, 0);
    EXPECT_EQ(s.one_minus_beta2, static_cast<float>(1 - 0.99));
    EXPECT_EQ(s.flags, 0);
  }
}

TEST(HyperParametersTest, ClipFactorIsPyTorchs) {
  EXPECT_EQ(ClipFactor(4.0, 1.0), static_cast<float>(1 / (2 + 1e-6)));
  EXPECT_EQ(ClipFactor(0.25, 1.0), 1.0f);
  EXPECT_EQ(ClipFactor(1.0, 1.0), static_cast<float>(1 / (1 + 1e-6)));
  EXPECT_EQ(ClipFactor(0.0, 1.0), 1.0f);
  EXPECT_EQ(ClipFactor(1e30, 0.0), 1.0f);  // no clipping
  EXPECT_EQ(ClipFactor(1e30, -1.0), 1.0f);
}

}  // namespace
}  // namespace ballast::kernels
