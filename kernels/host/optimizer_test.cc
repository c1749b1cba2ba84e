// optimizer_step on every instruction set against the reference. // I20, I25
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/host/fuzz.h"
#include "kernels/hyper_parameters.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

using fuzz::Array;
using fuzz::Random;

constexpr int64_t kElements = 10'000'000;

struct Rule {
  std::string name;
  OptimizerKind kind;
  HyperParameters hyper;
};

std::vector<Rule> Rules() {
  return {
      {"adamw", OptimizerKind::kAdamW, {.lr = 1e-3, .weight_decay = 0.1}},
      {"adam", OptimizerKind::kAdam, {.lr = 1e-3}},
      {"adam with decay", OptimizerKind::kAdam, {.weight_decay = 0.1}},
      {"sgd", OptimizerKind::kSgd, {.lr = 0.1}},
      {"sgd with momentum",
       OptimizerKind::kSgd,
       {.lr = 0.1, .weight_decay = 0.1, .momentum = 0.9, .dampening = 0.1}},
      {"sgd with Nesterov",
       OptimizerKind::kSgd,
       {.lr = 0.1, .momentum = 0.9, .nesterov = true}},
  };
}

struct State {
  State(int64_t count, int offset, Random* random)
      : w(fuzz::Floats(count, random), offset, true),
        m(fuzz::Floats(count, random), offset, true),
        v(fuzz::Floats(count, random), offset, true),
        weights(std::vector<float>(count), offset, true) {
    for (int64_t i = 0; i < count; ++i) {
      v.data()[i] = std::fabs(v.data()[i]);
    }
  }
  void Step(const Kernels& table, const Rule& rule, const StepScalars& scalars,
            const Array<float>& g, DType dtype, bool has_weights) {
    const bool is_sgd = rule.kind == OptimizerKind::kSgd;
    const bool has_buffer = !is_sgd || (scalars.flags & kFlagMomentum) != 0;
    table.optimizer_step(rule.kind, scalars, g.size(), g.data(), w.data(),
                         has_buffer ? m.data() : nullptr,
                         is_sgd ? nullptr : v.data(), dtype,
                         has_weights ? weights.data() : nullptr);
  }
  Array<float> w, m, v, weights;
};

// The cast weights are compared as values: a cast of a NaN has the bits of
// the NaN, which are not specified.
std::string DifferenceOf(const State& actual, const State& expected,
                         DType dtype) {
  for (const auto array : {&State::w, &State::m, &State::v}) {
    std::string wrong = fuzz::Difference(actual.*array, expected.*array);
    if (!wrong.empty()) return wrong;
  }
  if (!actual.weights.IsGuarded()) return "weights wrote outside";
  const int64_t count = expected.w.size();
  const std::vector<float> zeros(count);
  Array<float> a(zeros, 0);
  Array<float> e(zeros, 0);
  Reference().widen(actual.weights.data(), dtype, count, a.data());
  Reference().widen(expected.weights.data(), dtype, count, e.data());
  return fuzz::Difference(a, e);
}

std::string FuzzOptimizer(const std::vector<fuzz::Tested>& tables,
                          const std::vector<Rule>& rules, DType dtype,
                          int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const Rule& rule = rules[random->Below(static_cast<int>(rules.size()))];
    const Array<float> g(fuzz::Floats(count, random), random->Below(4));
    State expected(count, random->Below(4), random);
    const State before = expected;
    const int step = 1 + random->Below(3);
    const StepScalars scalars =
        PrepareScalars(rule.kind, rule.hyper, step, 0.75f);
    const bool has_weights = random->Below(8) != 0;
    expected.Step(Reference(), rule, scalars, g, dtype, has_weights);
    for (const fuzz::Tested& tested : tables) {
      State actual = before;
      actual.Step(tested.table, rule, scalars, g, dtype, has_weights);
      const std::string wrong = DifferenceOf(actual, expected, dtype);
      if (!wrong.empty()) return tested.name + " " + rule.name + ": " + wrong;
    }
    return std::string();
  });
}

TEST(OptimizerTest, EveryRuleIsTheReferenceWithEveryWeight) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(FuzzOptimizer(fuzz::HostTables(), Rules(), dtype, kElements), "")
        << Name(dtype);
  }
}

// Negative control: a fused multiply-add in the second moment.
TEST(OptimizerTest, NoticesFusedMultiplyAdd) {
  Kernels wrong = Reference();
  wrong.optimizer_step = [](OptimizerKind kind, const StepScalars& s,
                            int64_t count, const float* g, float* w, float* m,
                            float* v, DType dtype, void* weights) {
    for (int64_t i = 0; i < count; ++i) {
      const float old_v = v[i];
      Reference().optimizer_step(kind, s, 1, g + i, w + i, m + i, v + i, dtype,
                                 nullptr);
      const float clipped = g[i] * s.clip;
      v[i] = std::fma(s.beta2, old_v, s.one_minus_beta2 * clipped * clipped);
    }
    if (weights != nullptr) Reference().cast(w, dtype, count, weights);
  };
  EXPECT_NE(FuzzOptimizer({{"wrong", wrong}}, {Rules()[0]}, DType::kBFloat16,
                          100'000),
            "");
}

}  // namespace
}  // namespace ballast::kernels
