#include "kernels/reference/update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/reference/convert.h"

namespace ballast::kernels::reference {
namespace {

constexpr int64_t kTile = 256;  // masters still in the cache when they are cast

// Every operation below is one fp32 operation, rounded by itself, in the
// order of FORMAT.md, "Optimizers".

float SgdDirection(const StepScalars& s, float g, float* buffer) {
  const bool first = (s.flags & kFlagFirstStep) != 0;
  *buffer = first ? g : s.beta1 * *buffer + s.one_minus_beta1 * g;
  return (s.flags & kFlagNesterov) != 0 ? g + s.beta1 * *buffer : *buffer;
}

void SgdTile(const StepScalars& s, int64_t count, const float* gradient,
             float* master, float* buffer) {
  const bool has_momentum = (s.flags & kFlagMomentum) != 0;
  for (int64_t i = 0; i < count; ++i) {
    const float w = master[i];
    float g = gradient[i] * s.clip;
    if (s.weight_decay != 0) g = g + s.weight_decay * w;
    if (has_momentum) g = SgdDirection(s, g, &buffer[i]);
    master[i] = w - s.step_size * g;
  }
}

// adam has decay = 1, adamw has weight_decay = 0: one body for both.
void AdamTile(const StepScalars& s, int64_t count, const float* gradient,
              float* master, float* m, float* v) {
  for (int64_t i = 0; i < count; ++i) {
    const float w = s.decay * master[i];
    float g = gradient[i] * s.clip;
    if (s.weight_decay != 0) g = g + s.weight_decay * w;
    m[i] = s.beta1 * m[i] + s.one_minus_beta1 * g;
    v[i] = s.beta2 * v[i] + (s.one_minus_beta2 * g) * g;
    const float denominator = std::sqrt(v[i]) * s.inv_sqrt_bias2 + s.eps;
    master[i] = w - (s.step_size * m[i]) / denominator;
  }
}

void LionTile(const StepScalars& s, int64_t count, const float* gradient,
              float* master, float* m) {
  for (int64_t i = 0; i < count; ++i) {
    const float w = s.decay * master[i];
    const float g = gradient[i] * s.clip;
    const float c = s.beta1 * m[i] + s.one_minus_beta1 * g;
    m[i] = s.beta2 * m[i] + s.one_minus_beta2 * g;
    const float step = c > 0 ? s.step_size : c < 0 ? -s.step_size : 0.0f;
    master[i] = w - step;
  }
}

void AdagradTile(const StepScalars& s, int64_t count, const float* gradient,
                 float* master, float* sum) {
  const bool first = (s.flags & kFlagFirstStep) != 0;
  for (int64_t i = 0; i < count; ++i) {
    float g = gradient[i] * s.clip;
    if (s.weight_decay != 0) g = g + s.weight_decay * master[i];
    sum[i] = (first ? s.initial : sum[i]) + g * g;
    const float denominator = std::sqrt(sum[i]) + s.eps;
    master[i] = master[i] - (s.step_size * g) / denominator;
  }
}

// One step's arrays; those that it does not have are null.
struct Arrays {
  const float* gradient;
  float* master;
  float* m;
  float* v;
};

void StepTile(OptimizerKind kind, const StepScalars& s, int64_t count,
              const float* gradient, float* master, float* m, float* v) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return SgdTile(s, count, gradient, master, m);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return AdamTile(s, count, gradient, master, m, v);
    case OptimizerKind::kLion:
      return LionTile(s, count, gradient, master, m);
    case OptimizerKind::kAdagrad:
      return AdagradTile(s, count, gradient, master, m);
  }
}

float* Behind(float* array, int64_t begin) {
  return array == nullptr ? nullptr : array + begin;
}

// `keep(begin, size)` is called before the elements are changed.
template <typename Keep>
void ForEachTile(OptimizerKind kind, const StepScalars& scalars, int64_t count,
                 const Arrays& a, DType weight_dtype, void* weight_out,
                 Keep keep) {
  auto* weights = static_cast<std::byte*>(weight_out);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    keep(begin, size);
    StepTile(kind, scalars, size, a.gradient + begin, a.master + begin,
             Behind(a.m, begin), Behind(a.v, begin));
    if (weights == nullptr) continue;
    Cast(a.master + begin, weight_dtype, size,
         weights + begin * SizeOf(weight_dtype));
  }
}

}  // namespace

void OptimizerStep(OptimizerKind kind, const StepScalars& scalars,
                   int64_t count, const float* gradient, float* master,
                   float* m, float* v, DType weight_dtype, void* weight_out) {
  ForEachTile(kind, scalars, count, {gradient, master, m, v}, weight_dtype,
              weight_out, [](int64_t, int64_t) {});
}

void OptimizerStepUndo(OptimizerKind kind, const StepScalars& scalars,
                       int64_t count, const float* gradient, float* master,
                       float* m, float* v, DType weight_dtype, void* weight_out,
                       const StepUndo& undo) {
  ForEachTile(kind, scalars, count, {gradient, master, m, v}, weight_dtype,
              weight_out, [&](int64_t begin, int64_t size) {
                std::copy_n(master + begin, size, undo.master + begin);
                if (m != nullptr) std::copy_n(m + begin, size, undo.m + begin);
                if (v != nullptr) std::copy_n(v + begin, size, undo.v + begin);
                StoreInOrder(undo.saved, undo.first + begin + size);
              });
}

}  // namespace ballast::kernels::reference
