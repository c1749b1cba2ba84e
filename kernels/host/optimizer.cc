#include "kernels/host/optimizer.h"

#include "kernels/reference/reference.h"
#include "kernels/step_undo.h"

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

// Elements [i, i + kLanes); a rule leaves alone what it has no array for.
struct State {
  V w, m, v;
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

  bool has_m() const { return has_momentum; }
  static constexpr bool has_v() { return false; }

  HWY_INLINE void Step(V g, State* x) const {
    g = hn::Mul(g, clip);
    if (has_decay) g = hn::Add(g, hn::Mul(weight_decay, x->w));
    if (has_momentum) {
      x->m = is_first
                 ? g
                 : hn::Add(hn::Mul(beta1, x->m), hn::Mul(one_minus_beta1, g));
      g = is_nesterov ? hn::Add(g, hn::Mul(beta1, x->m)) : x->m;
    }
    x->w = hn::Sub(x->w, hn::Mul(step_size, g));
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

  static constexpr bool has_m() { return true; }
  static constexpr bool has_v() { return true; }

  HWY_INLINE void Step(V g, State* x) const {
    const V w = hn::Mul(decay, x->w);
    g = hn::Mul(g, clip);
    if (has_decay) g = hn::Add(g, hn::Mul(weight_decay, w));
    x->m = hn::Add(hn::Mul(beta1, x->m), hn::Mul(one_minus_beta1, g));
    x->v =
        hn::Add(hn::Mul(beta2, x->v), hn::Mul(hn::Mul(one_minus_beta2, g), g));
    const V denominator = hn::Add(hn::Mul(hn::Sqrt(x->v), inv_sqrt_bias2), eps);
    x->w = hn::Sub(w, hn::Div(hn::Mul(step_size, x->m), denominator));
  }

  bool has_decay;
  V clip, decay, weight_decay, beta1, one_minus_beta1, beta2, one_minus_beta2,
      inv_sqrt_bias2, eps, step_size;
};

struct Lion {
  explicit Lion(const StepScalars& s)
      : clip(hn::Set(D(), s.clip)),
        decay(hn::Set(D(), s.decay)),
        beta1(hn::Set(D(), s.beta1)),
        one_minus_beta1(hn::Set(D(), s.one_minus_beta1)),
        beta2(hn::Set(D(), s.beta2)),
        one_minus_beta2(hn::Set(D(), s.one_minus_beta2)),
        up(hn::Set(D(), s.step_size)),
        down(hn::Set(D(), -s.step_size)) {}

  static constexpr bool has_m() { return true; }
  static constexpr bool has_v() { return false; }

  HWY_INLINE void Step(V g, State* x) const {
    const V zero = hn::Zero(D());
    g = hn::Mul(g, clip);
    const V c = hn::Add(hn::Mul(beta1, x->m), hn::Mul(one_minus_beta1, g));
    x->m = hn::Add(hn::Mul(beta2, x->m), hn::Mul(one_minus_beta2, g));
    const V step = hn::IfThenElse(hn::Gt(c, zero), up,
                                  hn::IfThenElseZero(hn::Lt(c, zero), down));
    x->w = hn::Sub(hn::Mul(decay, x->w), step);
  }

  V clip, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, up, down;
};

struct Adagrad {
  explicit Adagrad(const StepScalars& s)
      : is_first((s.flags & kFlagFirstStep) != 0),
        has_decay(s.weight_decay != 0),
        clip(hn::Set(D(), s.clip)),
        weight_decay(hn::Set(D(), s.weight_decay)),
        initial(hn::Set(D(), s.initial)),
        eps(hn::Set(D(), s.eps)),
        step_size(hn::Set(D(), s.step_size)) {}

  static constexpr bool has_m() { return true; }
  static constexpr bool has_v() { return false; }

  HWY_INLINE void Step(V g, State* x) const {
    g = hn::Mul(g, clip);
    if (has_decay) g = hn::Add(g, hn::Mul(weight_decay, x->w));
    x->m = hn::Add(is_first ? initial : x->m, hn::Mul(g, g));
    const V denominator = hn::Add(hn::Sqrt(x->m), eps);
    x->w = hn::Sub(x->w, hn::Div(hn::Mul(step_size, g), denominator));
  }

  bool is_first, has_decay;
  V clip, weight_decay, initial, eps, step_size;
};

struct NoWeights {
  static void Store(D, V, void*, int64_t) {}
};

template <class Rule>
HWY_INLINE void StoreState(const Rule& rule, const State& x, int64_t i,
                           float* w, float* m, float* v) {
  hn::StoreU(x.w, D(), w + i);
  if (rule.has_m()) hn::StoreU(x.m, D(), m + i);
  if (rule.has_v()) hn::StoreU(x.v, D(), v + i);
}

// Elements that fill vectors; returns how many those are. Old values are
// still in registers when they are kept, so that each is read once.
template <class Format, class Rule, bool kKeep>
int64_t Run(const StepScalars& scalars, int64_t count, const Arrays& a,
            void* weight_out, const StepUndo& undo) {
  const Rule rule(scalars);
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    State x;
    x.w = hn::LoadU(d, a.master + i);
    x.m = rule.has_m() ? hn::LoadU(d, a.m + i) : hn::Zero(d);
    x.v = rule.has_v() ? hn::LoadU(d, a.v + i) : hn::Zero(d);
    const V g = hn::LoadU(d, a.gradient + i);
    if constexpr (kKeep) {
      StoreState(rule, x, i, undo.master, undo.m, undo.v);
      StoreInOrder(undo.saved, undo.first + i + kLanes);
    }
    rule.Step(g, &x);
    StoreState(rule, x, i, a.master, a.m, a.v);
    Format::Store(d, x.w, weight_out, i);
  }
  return i;
}

template <class Rule, bool kKeep>
int64_t RunFormat(const StepScalars& scalars, int64_t count, const Arrays& a,
                  DType dtype, void* weight_out, const StepUndo& undo) {
  if (weight_out == nullptr) {
    return Run<NoWeights, Rule, kKeep>(scalars, count, a, nullptr, undo);
  }
  switch (dtype) {
    case DType::kFloat32:
      return Run<Float32, Rule, kKeep>(scalars, count, a, weight_out, undo);
    case DType::kBFloat16:
      return Run<BFloat16, Rule, kKeep>(scalars, count, a, weight_out, undo);
    case DType::kFloat16:
      return Run<Float16, Rule, kKeep>(scalars, count, a, weight_out, undo);
  }
  return 0;
}

template <bool kKeep>
int64_t RunRule(OptimizerKind kind, const StepScalars& scalars, int64_t count,
                const Arrays& a, DType dtype, void* weight_out,
                const StepUndo& undo) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return RunFormat<Sgd, kKeep>(scalars, count, a, dtype, weight_out, undo);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return RunFormat<Adam, kKeep>(scalars, count, a, dtype, weight_out, undo);
    case OptimizerKind::kLion:
      return RunFormat<Lion, kKeep>(scalars, count, a, dtype, weight_out, undo);
    case OptimizerKind::kAdagrad:
      return RunFormat<Adagrad, kKeep>(scalars, count, a, dtype, weight_out,
                                       undo);
  }
  return 0;
}

float* Behind(float* array, int64_t done) {
  return array == nullptr ? nullptr : array + done;
}

void* Behind(void* weights, DType dtype, int64_t done) {
  if (weights == nullptr) return nullptr;
  return static_cast<char*>(weights) + done * SizeOf(dtype);
}

void OptimizerStep(OptimizerKind kind, const StepScalars& scalars,
                   int64_t count, const float* gradient, float* master,
                   float* m, float* v, DType weight_dtype, void* weight_out) {
  const int64_t done =
      RunRule<false>(kind, scalars, count, {gradient, master, m, v},
                     weight_dtype, weight_out, {});
  if (done == count) return;
  Reference().optimizer_step(kind, scalars, count - done, gradient + done,
                             master + done, Behind(m, done), Behind(v, done),
                             weight_dtype,
                             Behind(weight_out, weight_dtype, done));
}

void OptimizerStepUndo(OptimizerKind kind, const StepScalars& scalars,
                       int64_t count, const float* gradient, float* master,
                       float* m, float* v, DType weight_dtype, void* weight_out,
                       const StepUndo& undo) {
  const int64_t done =
      RunRule<true>(kind, scalars, count, {gradient, master, m, v},
                    weight_dtype, weight_out, undo);
  if (done == count) return;
  Reference().optimizer_step_undo(
      kind, scalars, count - done, gradient + done, master + done,
      Behind(m, done), Behind(v, done), weight_dtype,
      Behind(weight_out, weight_dtype, done),
      {undo.master + done, Behind(undo.m, done), Behind(undo.v, done),
       undo.saved, undo.first + done});
}

void Fill(Kernels* table) {
  table->optimizer_step = OptimizerStep;
  table->optimizer_step_undo = OptimizerStepUndo;
}

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
