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

}  // namespace

void OptimizerStep(OptimizerKind kind, const StepScalars& scalars,
                   int64_t count, const float* gradient, float* master,
                   float* m, float* v, DType weight_dtype, void* weight_out) {
  auto* weights = static_cast<std::byte*>(weight_out);
  for (int64_t begin = 0; begin < count; begin += kTile) {
    const int64_t size = std::min(kTile, count - begin);
    if (kind == OptimizerKind::kSgd) {
      SgdTile(scalars, size, gradient + begin, master + begin,
              m == nullptr ? nullptr : m + begin);
    } else {
      AdamTile(scalars, size, gradient + begin, master + begin, m + begin,
               v + begin);
    }
    if (weights == nullptr) continue;
    Cast(master + begin, weight_dtype, size,
         weights + begin * SizeOf(weight_dtype));
  }
}

}  // namespace ballast::kernels::reference
