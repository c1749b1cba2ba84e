// optimizer_step and optimizer_step_undo on every instruction set against the
// reference. // I20, I25
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/host/fuzz.h"
#include "kernels/hyper_parameters.h"
#include "kernels/reference/reference.h"
#include "kernels/single_step.h"
#include "kernels/step_undo.h"

namespace ballast::kernels {
namespace {

using fuzz::Array;
using fuzz::Random;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kElements = 1'000'000;
#else
constexpr int64_t kElements = 10'000'000;
#endif

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
      {"lion", OptimizerKind::kLion, {.lr = 1e-3, .weight_decay = 0.1}},
      {"adagrad", OptimizerKind::kAdagrad, {.lr = 0.1, .eps = 1e-10}},
      {"adagrad with all",
       OptimizerKind::kAdagrad,
       {.lr = 0.1,
        .weight_decay = 0.1,
        .lr_decay = 0.5,
        .initial_accumulator_value = 0.25}},
  };
}

bool HasM(const Rule& rule) {
  return StateArrays(rule.kind, rule.hyper.momentum != 0) > 0;
}
bool HasV(const Rule& rule) { return StateArrays(rule.kind, true) > 1; }

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
    table.optimizer_step(rule.kind, scalars, g.size(), g.data(), w.data(),
                         HasM(rule) ? m.data() : nullptr,
                         HasV(rule) ? v.data() : nullptr, dtype,
                         has_weights ? weights.data() : nullptr);
  }
  void StepUndo(const Kernels& table, const Rule& rule,
                const StepScalars& scalars, const Array<float>& g, DType dtype,
                bool has_weights, const kernels::StepUndo& undo) {
    table.optimizer_step_undo(rule.kind, scalars, g.size(), g.data(), w.data(),
                              undo.m == nullptr ? nullptr : m.data(),
                              undo.v == nullptr ? nullptr : v.data(), dtype,
                              has_weights ? weights.data() : nullptr, undo);
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

// Bit for bit, NaN too: what is kept is given back.
bool IsCopy(const Array<float>& copy, const Array<float>& of) {
  return copy.IsGuarded() &&
         (of.size() == 0 ||
          std::memcmp(copy.data(), of.data(), of.size() * sizeof(float)) == 0);
}

// The step with undo is a copy of what was there and then the step.
std::string FuzzUndo(const std::vector<fuzz::Tested>& tables, DType dtype,
                     int64_t elements) {
  const std::vector<Rule> rules = Rules();
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const Rule& rule = rules[random->Below(static_cast<int>(rules.size()))];
    const Array<float> g(fuzz::Floats(count, random), random->Below(4));
    const State before(count, random->Below(4), random);
    const StepScalars scalars =
        PrepareScalars(rule.kind, rule.hyper, 1 + random->Below(3), 0.75f);
    const bool has_weights = random->Below(8) != 0;
    State expected = before;
    expected.Step(Reference(), rule, scalars, g, dtype, has_weights);
    for (const fuzz::Tested& tested : tables) {
      const int offset = random->Below(4);
      const std::vector<float> dirt(count, 5);
      Array<float> kept[3] = {
          {dirt, offset, true}, {dirt, offset, true}, {dirt, offset, true}};
      std::atomic<int64_t> saved = 1000;
      State actual = before;
      actual.StepUndo(tested.table, rule, scalars, g, dtype, has_weights,
                      {kept[0].data(), HasM(rule) ? kept[1].data() : nullptr,
                       HasV(rule) ? kept[2].data() : nullptr, &saved, 1000});
      std::string wrong = DifferenceOf(actual, expected, dtype);
      if (wrong.empty() && saved != 1000 + count) wrong = "count of the saved";
      const Array<float> untouched(dirt, offset, true);
      if (!IsCopy(kept[0], before.w) ||
          !IsCopy(kept[1], HasM(rule) ? before.m : untouched) ||
          !IsCopy(kept[2], HasV(rule) ? before.v : untouched)) {
        wrong = "not a copy";
      }
      if (!wrong.empty()) return tested.name + " " + rule.name + ": " + wrong;
    }
    return std::string();
  });
}

TEST(OptimizerUndoTest, IsACopyAndThenTheStep) {
  std::vector<fuzz::Tested> tables = fuzz::HostTables();
  tables.push_back({"Reference", Reference()});
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(FuzzUndo(tables, dtype, kElements), "") << Name(dtype);
  }
}

// Memory that a stepped child shares with this test: arrays of the step, what
// is kept of them, and how much.
class SharedStep {
 public:
  static constexpr int64_t kCount = 37;  // vectors of any width, and a rest
  static constexpr int64_t kFirst = 4;
  enum { kW, kM, kV, kKeptW, kKeptM, kKeptV, kG, kWeights, kArrays };

  SharedStep()
      : memory_(static_cast<Memory*>(mmap(nullptr, sizeof(Memory),
                                          PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    Random random(3);
    for (auto& array : memory_->arrays) {
      for (float& x : array) x = 0.5f + 1e-6f * random.Below(1'000'000);
    }
    std::memcpy(&before_, memory_->arrays, sizeof(before_));
    memory_->saved.store(kFirst);
  }
  ~SharedStep() { munmap(memory_, sizeof(Memory)); }

  void Step(const Kernels& table, const Rule& rule) {
    auto& a = memory_->arrays;
    const StepScalars scalars = PrepareScalars(rule.kind, rule.hyper, 2, 0.75f);
    table.optimizer_step_undo(
        rule.kind, scalars, kCount, a[kG], a[kW], HasM(rule) ? a[kM] : nullptr,
        HasV(rule) ? a[kV] : nullptr, DType::kBFloat16, a[kWeights],
        {a[kKeptW], HasM(rule) ? a[kKeptM] : nullptr,
         HasV(rule) ? a[kKeptV] : nullptr, &memory_->saved, kFirst});
  }

  // A death now can be undone.
  std::string Check(const Rule& rule) const {
    const int64_t saved = memory_->saved.load() - kFirst;
    if (saved < 0 || saved > kCount) return "count of the saved";
    for (int array : {kW, kM, kV}) {
      if ((array == kM && !HasM(rule)) || (array == kV && !HasV(rule)))
        continue;
      for (int64_t i = 0; i < kCount; ++i) {
        const int at = i < saved ? array + kKeptW : array;
        if (!fuzz::Same(memory_->arrays[at][i], before_[array][i])) {
          return "element " + std::to_string(i) + " with " +
                 std::to_string(saved) + " saved";
        }
      }
    }
    return "";
  }
  bool IsStepped() const {
    return memory_->saved.load() == kFirst + kCount &&
           memory_->arrays[kW][kCount - 1] != before_[kW][kCount - 1];
  }

 private:
  struct Memory {
    std::atomic<int64_t> saved;
    float arrays[kArrays][kCount];
  };
  Memory* const memory_;
  float before_[kArrays][kCount];
};

std::string StepThrough(const Kernels& table, const Rule& rule,
                        int64_t* instructions) {
  SharedStep shared;
  const std::string wrong =
      ForEachInstruction([&] { shared.Step(table, rule); },
                         [&] { return shared.Check(rule); }, instructions);
  if (!wrong.empty() || *instructions == 0) return wrong;
  return shared.IsStepped() ? "" : "no step";
}

TEST(OptimizerUndoTest, ADeathAtAnyInstructionCanBeUndone) {
  std::vector<fuzz::Tested> tables = fuzz::HostTables();
  tables.push_back({"Reference", Reference()});
  for (const fuzz::Tested& tested : tables) {
    for (const Rule& rule : Rules()) {
      int64_t instructions = 0;
      EXPECT_EQ(StepThrough(tested.table, rule, &instructions), "")
          << tested.name << " " << rule.name;
      if (instructions == 0) GTEST_SKIP() << "nothing was traced";
      EXPECT_GT(instructions, 100);
    }
  }
}

// Negative controls: counted before it is kept, kept after the step, and no
// record at all.
TEST(OptimizerUndoTest, NoticesEveryWrongOrder) {
  const auto copy = [](int64_t count, const float* w, const float* m,
                       const float* v, const StepUndo& undo) {
    std::copy_n(w, count, undo.master);
    std::copy_n(m, count, undo.m);
    std::copy_n(v, count, undo.v);
  };
  static const auto kCopy = copy;
  Kernels wrong[3] = {Reference(), Reference(), Reference()};
  wrong[0].optimizer_step_undo = [](OptimizerKind kind, const StepScalars& s,
                                    int64_t count, const float* g, float* w,
                                    float* m, float* v, DType dtype,
                                    void* weights, const StepUndo& undo) {
    StoreInOrder(undo.saved, undo.first + count);
    kCopy(count, w, m, v, undo);
    Reference().optimizer_step(kind, s, count, g, w, m, v, dtype, weights);
  };
  wrong[1].optimizer_step_undo = [](OptimizerKind kind, const StepScalars& s,
                                    int64_t count, const float* g, float* w,
                                    float* m, float* v, DType dtype,
                                    void* weights, const StepUndo& undo) {
    Reference().optimizer_step(kind, s, count, g, w, m, v, dtype, weights);
    kCopy(count, w, m, v, undo);
    StoreInOrder(undo.saved, undo.first + count);
  };
  wrong[2].optimizer_step_undo = [](OptimizerKind kind, const StepScalars& s,
                                    int64_t count, const float* g, float* w,
                                    float* m, float* v, DType dtype,
                                    void* weights, const StepUndo&) {
    Reference().optimizer_step(kind, s, count, g, w, m, v, dtype, weights);
  };
  for (const Kernels& table : wrong) {
    int64_t instructions = 0;
    const std::string what = StepThrough(table, Rules()[0], &instructions);
    if (instructions == 0) GTEST_SKIP() << "nothing was traced";
    EXPECT_NE(what, "");
  }
}

}  // namespace
}  // namespace ballast::kernels
