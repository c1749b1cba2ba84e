// Daemons that are replaced under running jobs (I20): any preset, any moment,
// and any vector of an update; with the record that makes it whole left out as
// the control.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/step_undo.h"
#include "server/base/random.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

// A kernel is a plain function: what it does besides is here.
struct Death {
  Cluster* cluster = nullptr;
  int at_call = 0;  // of optimizer_step_undo, from 1
  int calls = 0;
  bool keeps_undo = true;
  bool has_struck = false;
};
Death death;

using kernels::StepUndo;

StepUndo From(const StepUndo& undo, int64_t count) {
  const auto at = [count](float* array) {
    return array == nullptr ? nullptr : array + count;
  };
  return {at(undo.master), at(undo.m), at(undo.v), undo.saved,
          undo.first + count};
}

// Half of the vector is updated when the daemon dies.
void StepAndDie(kernels::OptimizerKind kind,
                const kernels::StepScalars& scalars, int64_t count,
                const float* gradient, float* master, float* m, float* v,
                kernels::DType dtype, void* out, const StepUndo& undo) {
  const kernels::Kernels& reference = kernels::Reference();
  const bool strikes = ++death.calls == death.at_call;
  const int64_t half = strikes ? count / 2 : 0;
  if (strikes) {
    if (death.keeps_undo) {
      reference.optimizer_step_undo(kind, scalars, half, gradient, master, m, v,
                                    dtype, out, undo);
    } else {
      reference.optimizer_step(kind, scalars, half, gradient, master, m, v,
                               dtype, out);
    }
    death.has_struck = true;
    death.cluster->KillNow(0, absl::Milliseconds(5));
  }
  const auto at = [half](float* array) {
    return array == nullptr ? nullptr : array + half;
  };
  void* const rest =
      out == nullptr ? nullptr
                     : static_cast<char*>(out) + half * kernels::SizeOf(dtype);
  reference.optimizer_step_undo(kind, scalars, count - half, gradient + half,
                                master + half, at(m), at(v), dtype, rest,
                                From(undo, half));
}

Scenario Parse(const std::string& text) {
  const auto parsed = ParseScenario("restart", text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

Scenario Small() {
  return Parse(R"(
nodes 1
workers 2
tensor wte bfloat16 3x2049
tensor head float32 3000
tensor ones float32 900
optimizer adamw lr 0.01
bucket_bytes 8192
steps 4
at step 4 restart node 0 back 1ms
)");
}

std::string RunWithDeath(int at_call, bool keeps_undo) {
  kernels::Kernels table = kernels::Reference();
  table.optimizer_step_undo = &StepAndDie;
  Cluster cluster(Small(), /*seed=*/at_call, table);
  death = {.cluster = &cluster,
           .at_call = at_call,
           .calls = 0,
           .keeps_undo = keeps_undo,
           .has_struck = false};
  const std::string found = absl::StrJoin(cluster.Run().violations, "\n");
  EXPECT_TRUE(death.has_struck) << at_call;
  return found;
}

TEST(SimRestartTest, ADeathInAnyVectorChangesNoBit) {
  for (int at_call = 1; at_call <= 16; ++at_call) {
    EXPECT_EQ(RunWithDeath(at_call, /*keeps_undo=*/true), "") << at_call;
  }
}

TEST(SimRestartControlTest, WithoutTheUndoRecordItIsFound) {
  int found = 0;
  for (int at_call = 1; at_call <= 8; ++at_call) {
    found += absl::StrContains(RunWithDeath(at_call, /*keeps_undo=*/false),
                               "is not the reference model's");
  }
  EXPECT_GT(found, 0);
}

// Any preset, optimizer and shape; one to four restarts, at any moment.
Scenario RandomRestarts(uint64_t seed) {
  base::SeededRandom random(seed);
  const char* const exchanges[] = {"exact", "zeropp", "delta4"};
  const char* const optimizers[] = {"sgd lr 0.1", "sgd lr 0.1 momentum 0.9",
                                    "adamw lr 0.01", "adagrad lr 0.05",
                                    "lion lr 0.001"};
  const uint64_t workers = 1 + random.Below(3);
  std::string text = absl::StrCat(
      "nodes 1\nworkers ", workers, "\nexchange ", exchanges[random.Below(3)],
      "\ntensor a float32 3x3001\ntensor b ",
      random.Below(2) == 0 ? "bfloat16" : "float16",
      " 9001\ntensor ones float32 900\noptimizer ", optimizers[random.Below(5)],
      "\nsteps 7\nclip 1.0\nbucket_bytes ", 8192 << random.Below(3),
      "\nchunk_bytes ", 8192 << random.Below(2), "\n",
      random.Below(2) == 0 ? "overlap\n" : "push_order random\n", "hold 10m\n");
  for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
    absl::StrAppend(&text, "at step ", 2 + random.Below(6),
                    " restart node 0 back ", 1 + random.Below(50), "ms\n");
  }
  if (random.Below(3) == 0) {
    absl::StrAppend(&text, "at step 3 nan rank 0\n");
  }
  if (workers > 1 && random.Below(3) == 0) {
    absl::StrAppend(&text, "at step 4 lr rank 1 0.5\n");
  }
  return Parse(text);
}

TEST(SimRestartTest, AnyMomentOfAnyJobChangesNoBit) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Result result =
        Cluster(RandomRestarts(seed), seed, kernels::Reference()).Run();
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << "seed " << seed << ": " << violation;
    }
  }
}

}  // namespace
}  // namespace ballast::sim
