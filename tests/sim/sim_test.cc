// Every scenario with some seeds; and that the checks find what they are for.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/reference/reference.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/base/random.h"
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

int StatedFaults(const Scenario& life) {
  return static_cast<int>(life.faults.size()) +
         (life.power_fails_after > 0 ? 1 : 0) +
         (life.next.empty() ? 0 : StatedFaults(life.next[0]));
}

// But for those of a disk, which strike as often as it is used.
int HappenedFaults(const Result& result) {
  int faults = result.faults;
  for (const auto kind :
       {Fault::Kind::kDiskFails, Fault::Kind::kDiskFull, Fault::Kind::kTorn}) {
    faults -= result.faults_by_kind[static_cast<size_t>(kind)];
  }
  return faults;
}

class ScenarioTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(ScenarioTest, Passes) {
  for (uint64_t seed = kFirstSeed; seed < kEndSeed; ++seed) {
    const Result result = RunTwice(GetParam(), seed);
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << GetParam().name << " seed " << seed << ": " << violation;
    }
    EXPECT_EQ(HappenedFaults(result), StatedFaults(GetParam()))
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ScenarioTest, ::testing::ValuesIn(Scenarios()),
                         [](const auto& info) { return info.param.name; });

TEST(SimTest, AScenarioSaysWhereItIs) {  // the command that repeats it does
  for (const Scenario& scenario : Scenarios()) {
    const auto again = LoadScenario(scenario.path);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->name, scenario.name);
  }
}

// What the scenarios of disks are for does happen in them.
TEST(SimTest, DisksFailAsTheyAreSaidTo) {
  Result all;
  for (const char* name : {"disk_fails", "disk_full", "power_fails_torn"}) {
    const auto scenario =
        LoadScenario(absl::StrCat("tests/sim/scenarios/", name, ".txt"));
    ASSERT_TRUE(scenario.ok()) << scenario.status();
    const Result result = RunOnce(*scenario, kFirstSeed);
    for (size_t i = 0; i < all.faults_by_kind.size(); ++i) {
      all.faults_by_kind[i] += result.faults_by_kind[i];
    }
  }
  const auto times = [&all](Fault::Kind kind) {
    return all.faults_by_kind[static_cast<size_t>(kind)];
  };
  EXPECT_EQ(times(Fault::Kind::kDiskFails), 3);
  EXPECT_GT(times(Fault::Kind::kDiskFull), 0);
  EXPECT_GT(times(Fault::Kind::kTorn), 0);
}

// The control of what a life must begin with.
TEST(SimTest, ALifeThatBeginsTooEarlyIsFound) {
  auto scenario = LoadScenario("tests/sim/scenarios/power_fails.txt");
  ASSERT_TRUE(scenario.ok()) << scenario.status();
  scenario->next[0].begins_after = 9;
  EXPECT_TRUE(absl::StrContains(
      absl::StrJoin(RunOnce(*scenario, kFirstSeed).violations, "\n"),
      "begins after step"));
}

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

// The controls of what is lost: that there was an occasion for it, and that
// loss is not what all frames suffer anyway.
TEST(SimTest, ALossWithoutOccasionIsFound) {
  const auto violations = [](const char* more) {
    return absl::StrJoin(RunOnce(Small(more), kFirstSeed).violations, "\n");
  };
  EXPECT_EQ(violations("at step 2 lose_reply heal node 1\n"),
            "there was no heal of node 1 to lose");
  EXPECT_EQ(violations("at step 2 lose_request attach rank 3\n"),
            "there was no attach of rank 3 to lose");
  EXPECT_EQ(violations("at step 2 lose_reply heal node 1 maybe\n"), "");
}

TEST(SimTest, WhatIsLostIsSaidAgain) {
  const auto time = [](const char* more) {
    const Result result = RunOnce(Small(more), kFirstSeed);
    EXPECT_TRUE(result.passed()) << more;
    return result.virtual_time;
  };
  const absl::Duration peaceful = time("");
  // Frames are repeated later than a step takes.
  for (const char* lost : {"at step 2 lose_request vote node 1\n",
                           "at step 2 lose_reply commit node 1\n"}) {
    EXPECT_GT(time(lost), peaceful + absl::Milliseconds(40)) << lost;
  }
  // Calls are made again after a pause, too.
  constexpr char kAlone[] = "nodes 1\n";
  for (const char* lost : {"at step 0 lose_request begin rank 1\n",
                           "at step 0 lose_reply attach rank 1\n"}) {
    EXPECT_GT(time(absl::StrCat(kAlone, lost).c_str()),
              time(kAlone) + absl::Milliseconds(20))
        << lost;
  }
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
  // Where weights are gathered too.
  const Scenario gathered = Small("exchange exact secondary_partition=none");
  EXPECT_EQ(ViolationsWith(kernels::Reference(), gathered), "");
  EXPECT_TRUE(absl::StrContains(ViolationsWith(broken, gathered), "I25"));
}

// Partition groups whose owners would not divide by all ranks, or count their
// norm each.
TEST(SimControlTest, WhatGroupsGetWrongIsFound) {  // I6, I25
  const Scenario groups = Small("nodes 4\nexchange zeropp partition_nodes=2");
  EXPECT_EQ(ViolationsWith(kernels::Reference(), groups), "");
  kernels::Kernels broken = kernels::Reference();
  broken.finish_mean = [](std::span<const kernels::RankRange> ranges,
                          std::span<const float* const> parts, int,
                          int64_t count, float* out) {
    kernels::Reference().finish_mean(ranges, parts, 8, count, out);
    for (int64_t i = 0; i < count; ++i) out[i] *= 2;  // of a group only
  };
  EXPECT_TRUE(absl::StrContains(ViolationsWith(broken, groups),
                                "I6: the mean of ones"));
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

// Any preset, shape and network; at most one bit in a step with two or three
// nodes: what flips in two steps may be under way at once, and one node must
// have a chunk's bits still.
Scenario RandomCorruption(uint64_t seed) {
  base::SeededRandom random(seed);
  const uint64_t nodes = 2 + random.Below(3);
  const char* const exchanges[] = {
      "delta4", "delta2", "weights.mode=delta weights.codec=int8",
      "weights.mode=delta weights.codec=int4 weights.block=32"};
  std::string text = absl::StrCat(
      "nodes ", nodes, "\nworkers ", 1 + random.Below(2), "\nexchange ",
      exchanges[random.Below(4)], "\ntensor a float32 3x7001\ntensor b ",
      random.Below(2) == 0 ? "bfloat16" : "float16",
      " 20001\ntensor ones float32 900\noptimizer adamw lr 0.01\nsteps 8\n",
      "bucket_bytes ", 65536 << random.Below(2), "\nchunk_bytes ",
      8192 << random.Below(3), "\nin_flight ", 1 + random.Below(4),
      "\nlink delay 5us ", 1 + random.Below(9), "ms loss 0.", random.Below(3),
      " duplicate 0.", random.Below(3), " reorder 0.", random.Below(3), "\n",
      random.Below(2) == 0 ? "overlap\n" : "push_order random\n");
  const char* const whose[] = {"", "owner", "member", "member early unseen"};
  for (int step = 2; step <= 7; ++step) {
    const uint64_t most = nodes < 4 ? 1 : 3;
    for (uint64_t n = random.Below(most + 1); n > 0; --n) {
      absl::StrAppend(&text, "at step ", step, " corrupt node ",
                      random.Below(nodes), " ", whose[random.Below(4)], "\n");
    }
  }
  const auto parsed = ParseScenario(absl::StrCat("corrupt ", seed), text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

TEST(SimCorruptionTest, EndsWithTheBitsOfASoundRun) {  // I2, I20, I25
  uint64_t heals = 0;
  uint64_t early_heals = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Result result = RunOnce(RandomCorruption(seed), seed);
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << "corrupt seed " << seed << ": " << violation;
    }
    heals += result.heals;
    early_heals += result.early_heals;
  }
  EXPECT_GT(heals, 200);
  EXPECT_GT(early_heals, 20);
  EXPECT_LT(early_heals, heals);
}

// One bucket, so that no chunk is read before its node's last rank has pushed,
// which is when the bits flip.
TEST(SimCorruptionTest, WhatFlipsBeforeTheVoteIsHealedBeforeTheCommit) {
  for (const bool has_groups : {false, true}) {
    Scenario scenario = Small(absl::StrCat(
        "exchange delta4 override:wte=int4 override:ones=int4",
        has_groups ? " partition_nodes=2" : "", "\nbucket_bytes 4194304\n",
        "at step 2 corrupt node 0 member early\n"
        "at step 3 corrupt node 1 owner early\n"));
    scenario.nodes = has_groups ? 4 : 2;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const Result result = RunOnce(scenario, seed);
      for (const std::string& violation : result.violations) {
        ADD_FAILURE() << "seed " << seed << ": " << violation;
      }
      EXPECT_EQ(result.heals, 2) << seed;
      EXPECT_EQ(result.early_heals, 2) << seed;
    }
  }
}

// Two nodes, and their pulls are all lost.
TEST(SimControlTest, WeightsThatAreNotHealedAreFound) {
  Scenario scenario = Small(
      "exchange delta4 override:wte=int4 override:ones=int4\n"
      "at step 2 corrupt node 0 member early\n");
  EXPECT_EQ(ViolationsWith(kernels::Reference(), scenario), "");
  Cluster cluster(scenario, 1, kernels::Reference());
  cluster.frames().SetFilter([](NodeRank, NodeRank, const std::string& frame) {
    v1::PeerFrame parsed;
    return parsed.ParseFromString(frame) && parsed.has_pull();
  });
  const std::string found = absl::StrJoin(cluster.Run().violations, "\n");
  EXPECT_TRUE(absl::StrContains(found, "has not answered within")) << found;
}

}  // namespace
}  // namespace ballast::sim
