#include "kernels/host/optimizer.h"

#include "kernels/reference/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/optimizer.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/host/dispatch.h"
#include "kernels/host/float_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {
namespace {
#if HWY_TARGET == HWY_SCALAR
void Fill(Kernels*) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = hn::MaxLanes(D());

// FORMAT.md 8, operation by operation: a product and the sum behind it are
// two roundings, so nothing here may become a fused multiply-add.

struct Arrays {
  const float* gradient;
  float* master;
  float* m;
  float* v;
};

struct Sgd {
  explicit Sgd(const StepScalars& s)
      : has_momentum((s.flags & kFlagMomentum) != 0),
        is_first((s.flags & kFlagFirstStep) != 0),
        is_nesterov((s.flags & kFlagNesterov) != 0),
        has_decay(s.weight_decay != 0),
        clip(hn::Set(D(), s.clip)),
        weight_decay(hn::Set(D(), s.weight_decay)),
        beta1(hn::Set(D(), s.beta1)),
        one_minus_beta1(hn::Set(D(), s.one_minus_beta1)),
        step_size(hn::Set(D(), s.step_size)) {}

  // The new masters of elements [i, i + kLanes).
  HWY_INLINE V Step(const Arrays& a, int64_t i) const {
    const D d;
    const V w = hn::LoadU(d, a.master + i);
    V g = hn::Mul(hn::LoadU(d, a.gradient + i), clip);
    if (has_decay) g = hn::Add(g, hn::Mul(weight_decay, w));
    if (has_momentum) {
      V m = g;
      if (!is_first) {
        m = hn::Add(hn::Mul(beta1, hn::LoadU(d, a.m + i)),
                    hn::Mul(one_minus_beta1, g));
      }
      hn::StoreU(m, d, a.m + i);
      g = is_nesterov ? hn::Add(g, hn::Mul(beta1, m)) : m;
    }
    return hn::Sub(w, hn::Mul(step_size, g));
  }

  bool has_momentum, is_first, is_nesterov, has_decay;
  V clip, weight_decay, beta1, one_minus_beta1, step_size;
};

// adam has decay = 1, adamw has weight_decay = 0: one body for both.
struct Adam {
  explicit Adam(const StepScalars& s)
      : has_decay(s.weight_decay != 0),
        clip(hn::Set(D(), s.clip)),
        decay(hn::Set(D(), s.decay)),
        weight_decay(hn::Set(D(), s.weight_decay)),
        beta1(hn::Set(D(), s.beta1)),
        one_minus_beta1(hn::Set(D(), s.one_minus_beta1)),
        beta2(hn::Set(D(), s.beta2)),
        one_minus_beta2(hn::Set(D(), s.one_minus_beta2)),
        inv_sqrt_bias2(hn::Set(D(), s.inv_sqrt_bias2)),
        eps(hn::Set(D(), s.eps)),
        step_size(hn::Set(D(), s.step_size)) {}

  HWY_INLINE V Step(const Arrays& a, int64_t i) const {
    const D d;
    const V w = hn::Mul(decay, hn::LoadU(d, a.master + i));
    V g = hn::Mul(hn::LoadU(d, a.gradient + i), clip);
    if (has_decay) g = hn::Add(g, hn::Mul(weight_decay, w));
    const V m = hn::Add(hn::Mul(beta1, hn::LoadU(d, a.m + i)),
                        hn::Mul(one_minus_beta1, g));
    const V v = hn::Add(hn::Mul(beta2, hn::LoadU(d, a.v + i)),
                        hn::Mul(hn::Mul(one_minus_beta2, g), g));
    hn::StoreU(m, d, a.m + i);
    hn::StoreU(v, d, a.v + i);
    const V denominator = hn::Add(hn::Mul(hn::Sqrt(v), inv_sqrt_bias2), eps);
    return hn::Sub(w, hn::Div(hn::Mul(step_size, m), denominator));
  }

  bool has_decay;
  V clip, decay, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2,
      inv_sqrt_bias2, eps, step_size;
};

struct NoWeights {
  static void Store(D, V, void*, int64_t) {}
};

// Elements that fill vectors; returns how many those are.
template <class Format, class Rule>
int64_t Run(const StepScalars& scalars, int64_t count, const Arrays& arrays,
            void* weight_out) {
  const Rule rule(scalars);
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V w = rule.Step(arrays, i);
    hn::StoreU(w, d, arrays.master + i);
    Format::Store(d, w, weight_out, i);
  }
  return i;
}

template <class Rule>
int64_t RunFormat(const StepScalars& scalars, int64_t count,
                  const Arrays& arrays, DType dtype, void* weight_out) {
  if (weight_out == nullptr) {
    return Run<NoWeights, Rule>(scalars, count, arrays, nullptr);
  }
  switch (dtype) {
    case DType::kFloat32:
      return Run<Float32, Rule>(scalars, count, arrays, weight_out);
    case DType::kBFloat16:
      return Run<BFloat16, Rule>(scalars, count, arrays, weight_out);
    case DType::kFloat16:
      return Run<Float16, Rule>(scalars, count, arrays, weight_out);
  }
  return 0;
}

void OptimizerStep(OptimizerKind kind, const StepScalars& scalars,
                   int64_t count, const float* gradient, float* master,
                   float* m, float* v, DType weight_dtype, void* weight_out) {
  const Arrays arrays{gradient, master, m, v};
  const int64_t done =
      kind == OptimizerKind::kSgd
          ? RunFormat<Sgd>(scalars, count, arrays, weight_dtype, weight_out)
          : RunFormat<Adam>(scalars, count, arrays, weight_dtype, weight_out);
  if (done == count) return;
  const auto behind = [done](float* x) { return x ? x + done : nullptr; };
  auto* const weights = static_cast<char*>(weight_out);
  Reference().optimizer_step(
      kind, scalars, count - done, gradient + done, master + done, behind(m),
      behind(v), weight_dtype,
      weights ? weights + done * SizeOf(weight_dtype) : nullptr);
}

void Fill(Kernels* table) { table->optimizer_step = OptimizerStep; }

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddOptimizer(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
