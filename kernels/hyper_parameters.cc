#include "kernels/hyper_parameters.h"

#include <algorithm>
#include <cmath>

namespace ballast::kernels {
namespace {

float ToFp32(double value) { return static_cast<float>(value); }

void PrepareSgd(const HyperParameters& hyper, int64_t optimizer_step,
                StepScalars* scalars) {
  scalars->step_size = ToFp32(hyper.lr);
  scalars->weight_decay = ToFp32(hyper.weight_decay);
  if (hyper.momentum == 0) return;
  scalars->beta1 = ToFp32(hyper.momentum);
  scalars->one_minus_beta1 = ToFp32(1 - hyper.dampening);
  scalars->flags = kFlagMomentum;
  if (optimizer_step == 1) scalars->flags |= kFlagFirstStep;
  if (hyper.nesterov) scalars->flags |= kFlagNesterov;
}

void PrepareAdam(const HyperParameters& hyper, int64_t optimizer_step,
                 StepScalars* scalars) {
  const auto t = static_cast<double>(optimizer_step);
  const double bias1 = 1 - std::pow(hyper.beta1, t);
  const double bias2 = 1 - std::pow(hyper.beta2, t);
  scalars->step_size = ToFp32(hyper.lr / bias1);
  scalars->inv_sqrt_bias2 = ToFp32(1 / std::sqrt(bias2));
  scalars->beta1 = ToFp32(hyper.beta1);
  scalars->one_minus_beta1 = ToFp32(1 - hyper.beta1);
  scalars->beta2 = ToFp32(hyper.beta2);
  scalars->one_minus_beta2 = ToFp32(1 - hyper.beta2);
  scalars->eps = ToFp32(hyper.eps);
}

void PrepareLion(const HyperParameters& hyper, StepScalars* scalars) {
  scalars->step_size = ToFp32(hyper.lr);
  scalars->decay = ToFp32(1 - hyper.lr * hyper.weight_decay);
  scalars->beta1 = ToFp32(hyper.beta1);
  scalars->one_minus_beta1 = ToFp32(1 - hyper.beta1);
  scalars->beta2 = ToFp32(hyper.beta2);
  scalars->one_minus_beta2 = ToFp32(1 - hyper.beta2);
}

void PrepareAdagrad(const HyperParameters& hyper, int64_t optimizer_step,
                    StepScalars* scalars) {
  const auto steps_before = static_cast<double>(optimizer_step - 1);
  scalars->step_size = ToFp32(hyper.lr / (1 + steps_before * hyper.lr_decay));
  scalars->weight_decay = ToFp32(hyper.weight_decay);
  scalars->eps = ToFp32(hyper.eps);
  scalars->initial = ToFp32(hyper.initial_accumulator_value);
  if (optimizer_step == 1) scalars->flags = kFlagFirstStep;
}

}  // namespace

StepScalars PrepareScalars(OptimizerKind kind, const HyperParameters& hyper,
                           int64_t optimizer_step, float clip) {
  StepScalars scalars;
  scalars.clip = clip;
  switch (kind) {
    case OptimizerKind::kSgd:
      PrepareSgd(hyper, optimizer_step, &scalars);
      break;
    case OptimizerKind::kAdam:
      PrepareAdam(hyper, optimizer_step, &scalars);
      scalars.weight_decay = ToFp32(hyper.weight_decay);
      break;
    case OptimizerKind::kAdamW:
      PrepareAdam(hyper, optimizer_step, &scalars);
      scalars.decay = ToFp32(1 - hyper.lr * hyper.weight_decay);
      break;
    case OptimizerKind::kLion:
      PrepareLion(hyper, &scalars);
      break;
    case OptimizerKind::kAdagrad:
      PrepareAdagrad(hyper, optimizer_step, &scalars);
      break;
  }
  return scalars;
}

float ClipFactor(double norm2, double max_norm) {
  if (!(max_norm > 0)) return 1;
  return ToFp32(std::min(1.0, max_norm / (std::sqrt(norm2) + 1e-6)));
}

}  // namespace ballast::kernels
