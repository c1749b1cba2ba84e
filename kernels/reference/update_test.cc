#include "kernels/reference/update.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_formats.h"
#include "kernels/reference/convert.h"

namespace ballast::kernels::reference {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 255, 256, 257, 2047, 2048, 2049};
constexpr int kSteps = 50;

using Vector = std::vector<float>;

Vector Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Vector x(count);
  for (float& value : x) value = normal(random);
  return x;
}

struct State {
  Vector master, m, v;
  explicit State(int64_t count)
      : master(Normal(count, 1)), m(count), v(count) {}
};

void Step(OptimizerKind kind, const HyperParameters& hyper, int step,
          float clip, const Vector& gradient, State* state) {
  const StepScalars scalars = PrepareScalars(kind, hyper, step, clip);
  OptimizerStep(kind, scalars, gradient.size(), gradient.data(),
                state->master.data(), state->m.data(), state->v.data(),
                DType::kFloat32, nullptr);
}

// PyTorch's documented formulas for one element, in double.
struct DoubleOptimizer {
  OptimizerKind kind;
  HyperParameters h;
  double w = 0, m = 0, v = 0;

  void Step(int t, double g) {
    if (kind == OptimizerKind::kSgd) {
      g += h.weight_decay * w;
      if (h.momentum != 0) {
        m = t == 1 ? g : h.momentum * m + (1 - h.dampening) * g;
        g = h.nesterov ? g + h.momentum * m : m;
      }
      w -= h.lr * g;
      return;
    }
    if (kind == OptimizerKind::kLion) {  // Chen et al., algorithm 2
      const double c = h.beta1 * m + (1 - h.beta1) * g;
      w -= h.lr * ((c > 0) - (c < 0) + h.weight_decay * w);
      m = h.beta2 * m + (1 - h.beta2) * g;
      return;
    }
    if (kind == OptimizerKind::kAdagrad) {
      if (t == 1) m = h.initial_accumulator_value;
      g += h.weight_decay * w;
      m += g * g;
      w -= h.lr / (1 + (t - 1) * h.lr_decay) * g / (std::sqrt(m) + h.eps);
      return;
    }
    if (kind == OptimizerKind::kAdam) g += h.weight_decay * w;
    if (kind == OptimizerKind::kAdamW) w -= h.lr * h.weight_decay * w;
    m = h.beta1 * m + (1 - h.beta1) * g;
    v = h.beta2 * v + (1 - h.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(h.beta1, t));
    const double v_hat = v / (1 - std::pow(h.beta2, t));
    w -= h.lr * m_hat / (std::sqrt(v_hat) + h.eps);
  }
};

// Relative distance in norm between 50 steps in fp32 and in double.
double DistanceToDouble(OptimizerKind kind, const HyperParameters& hyper,
                        OptimizerKind double_kind) {
  const int64_t count = 300;
  State state(count);
  std::vector<DoubleOptimizer> exact(count, {double_kind, hyper});
  for (int64_t i = 0; i < count; ++i) exact[i].w = state.master[i];
  const float clip = 0.75f;
  for (int t = 1; t <= kSteps; ++t) {
    const Vector gradient = Normal(count, 1000 + t);
    Step(kind, hyper, t, clip, gradient, &state);
    for (int64_t i = 0; i < count; ++i) {
      exact[i].Step(t, static_cast<double>(gradient[i]) * clip);
    }
  }
  double distance = 0;
  double norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    distance += std::pow(state.master[i] - exact[i].w, 2);
    norm += std::pow(exact[i].w, 2);
  }
  return std::sqrt(distance / norm);
}

struct Case {
  OptimizerKind kind;
  HyperParameters hyper;
};

const Case kCases[] = {
    {OptimizerKind::kSgd, {.lr = 0.01}},
    {OptimizerKind::kSgd, {.lr = 0.01, .weight_decay = 0.1}},
    {OptimizerKind::kSgd, {.lr = 0.01, .momentum = 0.9}},
    {OptimizerKind::kSgd, {.lr = 0.01, .momentum = 0.9, .dampening = 0.3}},
    {OptimizerKind::kSgd,
     {.lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true}},
    {OptimizerKind::kAdam, {.lr = 0.01}},
    {OptimizerKind::kAdam, {.lr = 0.01, .weight_decay = 0.1}},
    {OptimizerKind::kAdamW, {.lr = 0.01, .weight_decay = 0.1}},
    {OptimizerKind::kAdamW, {.lr = 0.01, .beta2 = 0.95, .eps = 1e-3}},
    {OptimizerKind::kLion, {.lr = 1e-3, .beta2 = 0.99}},
    {OptimizerKind::kLion, {.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0.1}},
    {OptimizerKind::kAdagrad, {.lr = 0.01, .eps = 1e-10}},
    {OptimizerKind::kAdagrad,
     {.lr = 0.01,
      .eps = 1e-10,
      .weight_decay = 0.1,
      .lr_decay = 0.1,
      .initial_accumulator_value = 0.5}},
};

TEST(UpdateTest, FiftyStepsFollowTheDoubleFormulas) {
  for (const Case& c : kCases) {
    // Lion's step is the same each time and may round the same way each time.
    const double bound =
        c.kind == OptimizerKind::kLion ? kSteps * 0x1p-25 : 1e-6;
    EXPECT_LT(DistanceToDouble(c.kind, c.hyper, c.kind), bound)
        << static_cast<int>(c.kind) << " momentum " << c.hyper.momentum;
  }
}

// Negative control: the two decays are not the same optimizer.
TEST(UpdateTest, AdamIsNotAdamW) {
  const HyperParameters hyper{.lr = 0.01, .weight_decay = 0.1};
  EXPECT_GT(
      DistanceToDouble(OptimizerKind::kAdam, hyper, OptimizerKind::kAdamW),
      1e-3);
}

// Bits of one AdamW element, each operation written out.
TEST(UpdateTest, AdamWOrderOfOperations) {
  const HyperParameters hyper{.lr = 3e-4, .weight_decay = 0.1};
  const StepScalars s = PrepareScalars(OptimizerKind::kAdamW, hyper, 7, 0.3f);
  const Vector g = Normal(2048, 2);
  State state(2048);
  state.m = Normal(2048, 3);
  for (int i = 0; i < 2048; ++i) state.v[i] = state.m[i] * state.m[i];
  const State before = state;
  Step(OptimizerKind::kAdamW, hyper, 7, 0.3f, g, &state);
  for (int i = 0; i < 2048; ++i) {
    const volatile float decayed = s.decay * before.master[i];
    const volatile float clipped = g[i] * s.clip;
    const volatile float m1 = s.beta1 * before.m[i];
    const volatile float m2 = s.one_minus_beta1 * clipped;
    const volatile float m = m1 + m2;
    const volatile float v1 = s.beta2 * before.v[i];
    const volatile float v2 = s.one_minus_beta2 * clipped;
    const volatile float v3 = v2 * clipped;
    const volatile float v = v1 + v3;
    const volatile float root = std::sqrt(v);
    const volatile float scaled = root * s.inv_sqrt_bias2;
    const volatile float denominator = scaled + s.eps;
    const volatile float numerator = s.step_size * m;
    const volatile float update = numerator / denominator;
    const volatile float w = decayed - update;
    ASSERT_EQ(Bits(state.m[i]), Bits(m));
    ASSERT_EQ(Bits(state.v[i]), Bits(v));
    ASSERT_EQ(Bits(state.master[i]), Bits(w));
  }
}

TEST(UpdateTest, ClipOfOneChangesNoBit) {
  for (const Case& c : kCases) {
    State state(2048);
    State doubled(2048);
    Vector g = Normal(2048, 4);
    Step(c.kind, c.hyper, 1, 1.0f, g, &state);
    for (float& x : g) x *= 2;
    Step(c.kind, c.hyper, 1, 0.5f, g, &doubled);
    EXPECT_EQ(state.master, doubled.master);
  }
}

// The rule hangs on the step number, not on what the buffer holds.
TEST(UpdateTest, FirstMomentumBufferIsTheGradient) {
  const HyperParameters hyper{.lr = 0.1, .momentum = 0.9, .dampening = 0.5};
  const Vector g = Normal(10, 5);
  State state(10);
  state.m.assign(10, 1e30f);  // stale contents
  Step(OptimizerKind::kSgd, hyper, 1, 1, g, &state);
  EXPECT_EQ(state.m, g);
  Step(OptimizerKind::kSgd, hyper, 2, 1, g, &state);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FLOAT_EQ(state.m[i], 0.9f * g[i] + 0.5f * g[i]);
  }
}

// The rule hangs on the step number here too.
TEST(UpdateTest, AdagradStartsFromItsInitialValue) {
  const HyperParameters hyper{.lr = 0.1, .initial_accumulator_value = 3};
  const Vector g = Normal(10, 5);
  State state(10);
  state.m.assign(10, 1e30f);  // stale contents
  Step(OptimizerKind::kAdagrad, hyper, 1, 1, g, &state);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(state.m[i], 3 + g[i] * g[i]);
  Step(OptimizerKind::kAdagrad, hyper, 2, 1, g, &state);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(state.m[i], (3 + g[i] * g[i]) + g[i] * g[i]);
  }
}

// Every weight moves by the step size, or not at all where nothing ever came.
TEST(UpdateTest, LionStepsBySigns) {
  Vector w = {1, 1, 1, 1};
  Vector m(4);
  const Vector g = {1e-30f, -1e30f, 0, -0.0f};
  const StepScalars s =
      PrepareScalars(OptimizerKind::kLion, {.lr = 0.25, .beta2 = 0.99}, 1, 1);
  OptimizerStep(OptimizerKind::kLion, s, 4, g.data(), w.data(), m.data(),
                nullptr, DType::kFloat32, nullptr);
  EXPECT_EQ(w, Vector({0.75f, 1.25f, 1, 1}));
}

TEST(UpdateTest, PlainSgdNeedsNoState) {
  Vector w = {1, 2, 3};
  const Vector g = {1, 1, -2};
  const StepScalars s = PrepareScalars(OptimizerKind::kSgd, {.lr = 0.5}, 1, 1);
  OptimizerStep(OptimizerKind::kSgd, s, 3, g.data(), w.data(), nullptr, nullptr,
                DType::kFloat32, nullptr);
  EXPECT_EQ(w, Vector({0.5f, 1.5f, 4}));
}

// I5: the fused cast is the cast of the new master, for every count; nothing
// behind the end is written (I13).
TEST(UpdateTest, WeightIsTheCastMaster) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t count : kCounts) {
      for (const Case& c : kCases) {
        State state(count);
        const Vector g = Normal(count, 6);
        const size_t bytes = count * SizeOf(dtype);
        std::vector<uint8_t> weights(bytes + 1, 0xa5);
        OptimizerStep(c.kind, PrepareScalars(c.kind, c.hyper, 1, 1), count,
                      g.data(), state.master.data(), state.m.data(),
                      state.v.data(), dtype, weights.data());
        std::vector<uint8_t> expected(bytes + 1, 0xa5);
        Cast(state.master.data(), dtype, count, expected.data());
        ASSERT_EQ(weights, expected);
      }
    }
  }
}

// I9: chunks give the bits of one call.
TEST(UpdateTest, ChunksChangeNoBit) {
  for (const Case& c : kCases) {
    State whole(2049);
    State parts(2049);
    for (int t = 1; t <= 3; ++t) {
      const Vector g = Normal(2049, 10 + t);
      Step(c.kind, c.hyper, t, 1, g, &whole);
      const StepScalars s = PrepareScalars(c.kind, c.hyper, t, 1);
      for (int64_t begin = 0; begin < 2049; begin += 100) {
        OptimizerStep(c.kind, s, std::min<int64_t>(100, 2049 - begin),
                      g.data() + begin, parts.master.data() + begin,
                      parts.m.data() + begin, parts.v.data() + begin,
                      DType::kFloat32, nullptr);
      }
    }
    EXPECT_EQ(whole.master, parts.master);
    EXPECT_EQ(whole.m, parts.m);
    EXPECT_EQ(whole.v, parts.v);
  }
}

TEST(UpdateTest, ExtremeGradientsStayDefined) {
  State state(4);
  const Vector start = state.master;
  const Vector g = {0, 0x1p-149f, 1e30f, -1e30f};
  Step(OptimizerKind::kAdam, {.lr = 0.1}, 1, 1, g, &state);
  EXPECT_EQ(state.master[0], start[0]);
  for (const float w : state.master) EXPECT_TRUE(IsFinite(w));
}

}  // namespace
}  // namespace ballast::kernels::reference
