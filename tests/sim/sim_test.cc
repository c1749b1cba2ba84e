// Every scenario with some seeds; and that the checks find what they are for.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/reference/reference.h"
#include "tests/sim/runner.h"

namespace ballast::sim {
namespace {

constexpr uint64_t kFirstSeed = 1;
constexpr uint64_t kEndSeed = 4;

std::vector<Scenario> Scenarios() {
  absl::StatusOr<std::vector<Scenario>> scenarios =
      LoadScenarios("tests/sim/scenarios");
  EXPECT_TRUE(scenarios.ok()) << scenarios.status();
  return scenarios.ok() ? *std::move(scenarios) : std::vector<Scenario>();
}

class ScenarioTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(ScenarioTest, Passes) {
  for (uint64_t seed = kFirstSeed; seed < kEndSeed; ++seed) {
    const Result result = RunTwice(GetParam(), seed);
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << GetParam().name << " seed " << seed << ": " << violation;
    }
    EXPECT_EQ(result.faults, GetParam().faults.size()) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ScenarioTest, ::testing::ValuesIn(Scenarios()),
                         [](const auto& info) { return info.param.name; });

TEST(SimTest, OtherSeedsAreOtherRunsOfTheSameTraining) {
  const Scenario scenario = Scenarios()[0];
  const Result a = RunOnce(scenario, 1);
  const Result b = RunOnce(scenario, 2);
  EXPECT_NE(a.trace_hash, b.trace_hash);
  EXPECT_EQ(a.weights, b.weights);
}

// Controls: each breaks one thing and must be found.

Scenario Small(std::string_view more = "") {
  const auto parsed = ParseScenario("control", absl::StrCat(R"(
nodes 2
workers 2
tensor ones float32 3000
tensor wte float32 3x2049
optimizer sgd lr 0.5
bucket_bytes 8192
steps 3
)",
                                                            std::string(more)));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

std::string ViolationsWith(const kernels::Kernels& kernels,
                           const Scenario& scenario = Small()) {
  return absl::StrJoin(Cluster(scenario, 1, kernels).Run().violations, "\n");
}

TEST(SimControlTest, SoundKernelsViolateNothing) {
  EXPECT_EQ(ViolationsWith(kernels::Reference()), "");
}

TEST(SimControlTest, SumInsteadOfMeanIsFound) {  // I6
  kernels::Kernels broken = kernels::Reference();
  broken.finish_mean = [](std::span<const kernels::RankRange> ranges,
                          std::span<const float* const> parts, int,
                          int64_t count, float* out) {
    kernels::Reference().finish_mean(ranges, parts, 4, count, out);
    for (int64_t i = 0; i < count; ++i) out[i] *= 4;
  };
  EXPECT_TRUE(
      absl::StrContains(ViolationsWith(broken), "I6: the mean of ones"));
}

TEST(SimControlTest, OneWrongBitIsFound) {  // I25
  kernels::Kernels broken = kernels::Reference();
  broken.optimizer_step_undo =
      [](kernels::OptimizerKind kind, const kernels::StepScalars& scalars,
         int64_t count, const float* gradient, float* master, float* m,
         float* v, kernels::DType dtype, void* out,
         const kernels::StepUndo& undo) {
        kernels::Reference().optimizer_step_undo(
            kind, scalars, count, gradient, master, m, v, dtype, out, undo);
        if (out != nullptr) *static_cast<uint8_t*>(out) ^= 1;
      };
  EXPECT_TRUE(absl::StrContains(ViolationsWith(broken), "I25"));
}

TEST(SimControlTest, NormThatMissesACellIsFound) {  // I15
  kernels::Kernels broken = kernels::Reference();
  broken.cell_norm = [](const float* x, int64_t count) {
    return kernels::Reference().cell_norm(x, count > 100 ? count - 1 : count);
  };
  EXPECT_TRUE(absl::StrContains(ViolationsWith(broken), "I15"));
}

TEST(SimControlTest, NanThatIsNotSeenIsFound) {  // I10
  kernels::Kernels broken = kernels::Reference();
  broken.cell_norm = [](const float* x, int64_t count) {
    kernels::CellNorm norm = kernels::Reference().cell_norm(x, count);
    norm.finite = true;
    return norm;
  };
  const std::string found =
      ViolationsWith(broken, Small("at step 2 nan rank 1\n"));
  EXPECT_TRUE(absl::StrContains(found, "skipped 0")) << found;
}

TEST(SimControlTest, OneWrongCodeIsFound) {  // I25
  kernels::Kernels broken = kernels::Reference();
  broken.encode = [](const kernels::CodecSpec& spec, uint64_t key,
                     int64_t first, int64_t count, const float* in,
                     uint8_t* out) {
    kernels::Reference().encode(spec, key, first, count, in, out);
    if (count > 0) out[kernels::CodesOffset(spec, count)] ^= 1;
  };
  const Scenario scenario = Small("exchange zeropp override:wte=int8\n");
  EXPECT_EQ(ViolationsWith(kernels::Reference(), scenario), "");
  EXPECT_TRUE(absl::StrContains(ViolationsWith(broken, scenario), "I25"));
}

TEST(SimControlTest, WorkerThatIsNotReplacedIsFound) {  // I23
  const std::string found = ViolationsWith(
      kernels::Reference(), Small("hold 10s\nat step 2 crash rank 1\n"));
  EXPECT_TRUE(absl::StrContains(found, "rank 0 ended with")) << found;
}

TEST(SimControlTest, FailureWithAnotherReasonIsFound) {  // I23
  const std::string found = ViolationsWith(
      kernels::Reference(),
      Small("hold 10s\nat step 2 crash rank 1\nexpect bananas\n"));
  EXPECT_TRUE(absl::StrContains(found, "bananas")) << found;
}

}  // namespace
}  // namespace ballast::sim
