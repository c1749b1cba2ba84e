// Many drawn lives of jobs, each twice (README.md); and that such lives find
// what is broken. More of them: ballast_sim --profile.
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "tests/sim/random_schedule.h"
#include "tests/sim/runner.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

// Sum of what really happened, by kind.
using Counts = std::array<int, Fault::kNumKinds>;

Counts RunSeeds(Profile profile, uint64_t first, uint64_t end) {
  Counts counts{};
  for (uint64_t seed = first; seed < end; ++seed) {
    const Result result =
        RunSchedule(DrawSchedule(profile, seed), seed, kernels::Reference());
    for (const std::string& violation : result.violations) {
      ADD_FAILURE() << "bazel run //tests/sim:ballast_sim -- --profile "
                    << Name(profile) << " --seeds " << seed << ".." << seed + 1
                    << ": " << violation;
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      counts[i] += result.faults_by_kind[i];
    }
  }
  return counts;
}

void ExpectAllBut(const std::set<Fault::Kind>& absent, const Counts& counts) {
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto kind = static_cast<Fault::Kind>(i);
    EXPECT_EQ(counts[i] == 0, absent.contains(kind)) << Name(kind);
  }
}

const std::set<Fault::Kind> kOfDisk = {
    Fault::Kind::kDiskFails, Fault::Kind::kDiskFull, Fault::Kind::kPowerFails,
    Fault::Kind::kTorn};

std::set<Fault::Kind> WithDisk(std::set<Fault::Kind> kinds) {
  kinds.insert(kOfDisk.begin(), kOfDisk.end());
  return kinds;
}

TEST(RandomTest, SurvivesFaults) {  // I1 to I28
  ExpectAllBut(WithDisk({Fault::Kind::kDaemonDies}),
               RunSeeds(Profile::kFast, 0, 500));
}

TEST(RandomTest, SurvivesManyFaults) {
  ExpectAllBut(WithDisk({Fault::Kind::kDaemonDies}),
               RunSeeds(Profile::kSlow, 0, 30));
}

TEST(RandomTest, AllHearOfTheEnd) {  // I23
  ExpectAllBut(WithDisk({Fault::Kind::kCorrupt}),
               RunSeeds(Profile::kDeath, 0, 100));
}

TEST(RandomTest, GoesOnFromWhatTheDiskKept) {  // I17, I20, I27
  ExpectAllBut({Fault::Kind::kCorrupt, Fault::Kind::kDaemonDies,
                Fault::Kind::kRestart, Fault::Kind::kKeeperDies},
               RunSeeds(Profile::kDisk, 0, 100));
}

TEST(RandomTest, GoesOnFromWhatNodesHold) {  // I17, I20, I27
  ExpectAllBut(WithDisk({Fault::Kind::kCorrupt, Fault::Kind::kPartition,
                         Fault::Kind::kRestart, Fault::Kind::kKeeperDies}),
               RunSeeds(Profile::kLoss, 0, 60));
}

// Faults come up to the last step, whose end is the job's.
TEST(RandomTest, DrawsFaultsOfEveryStep) {
  for (const Profile profile : {Profile::kFast, Profile::kSlow}) {
    std::set<Fault::Kind> last;
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      const auto scenario = ParseScenario("drawn", DrawSchedule(profile, seed));
      ASSERT_TRUE(scenario.ok()) << scenario.status();
      for (const Fault& fault : scenario->faults) {
        if (fault.step == scenario->steps) last.insert(fault.kind);
      }
    }
    for (const Fault::Kind kind :
         {Fault::Kind::kNan, Fault::Kind::kValue, Fault::Kind::kCrash,
          Fault::Kind::kSlow, Fault::Kind::kPartition, Fault::Kind::kRestart,
          Fault::Kind::kStop, Fault::Kind::kLoseRequest,
          Fault::Kind::kLoseReply}) {
      EXPECT_TRUE(last.contains(kind)) << Name(kind);
    }
  }
}

TEST(RandomTest, ASeedIsOneSchedule) {
  EXPECT_EQ(DrawSchedule(Profile::kFast, 7), DrawSchedule(Profile::kFast, 7));
  EXPECT_NE(DrawSchedule(Profile::kFast, 7), DrawSchedule(Profile::kFast, 8));
  EXPECT_NE(DrawSchedule(Profile::kFast, 7), DrawSchedule(Profile::kSlow, 7));
}

// What is printed can be run as it is, lives that follow too.
TEST(RandomTest, AScheduleIsAScenario) {
  for (const Profile profile :
       {Profile::kFast, Profile::kDisk, Profile::kLoss}) {
    const std::string text = DrawSchedule(profile, 3);
    const auto scenario = ParseScenario("drawn", text);
    ASSERT_TRUE(scenario.ok()) << scenario.status();
    EXPECT_EQ(scenario->next.empty(), profile == Profile::kFast);
    const Result drawn = RunSchedule(text, 3, kernels::Reference());
    EXPECT_TRUE(drawn.passed());
    EXPECT_EQ(RunTwice(*scenario, 3).trace_hash, drawn.trace_hash);
  }
}

// The control: updates that forget one element in a thousand calls.
TEST(RandomControlTest, ARareFaultOfAnUpdateIsFound) {
  static int calls = 0;
  kernels::Kernels broken = kernels::Reference();
  broken.optimizer_step_undo =
      [](kernels::OptimizerKind kind, const kernels::StepScalars& scalars,
         int64_t count, const float* gradient, float* master, float* m,
         float* v, kernels::DType dtype, void* out,
         const kernels::StepUndo& undo) {
        kernels::Reference().optimizer_step_undo(
            kind, scalars, count, gradient, master, m, v, dtype, out, undo);
        if (++calls % 1000 == 0) master[0] += 0.125f;
      };
  int found = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    found +=
        RunSchedule(DrawSchedule(Profile::kFast, seed), seed, broken).passed()
            ? 0
            : 1;
  }
  EXPECT_GT(found, 0);
}

// And a schedule whose end is another than it says.
TEST(RandomControlTest, AnEndThatIsNotExpectedIsFound) {
  std::string schedule = DrawSchedule(Profile::kDeath, 1);
  const std::string_view expectation =
      "expect node or did not start or its keeper died\n";
  const size_t at = schedule.find(expectation);
  ASSERT_NE(at, std::string::npos);
  schedule.erase(at, expectation.size());
  EXPECT_FALSE(RunSchedule(schedule, 1, kernels::Reference()).passed());
}

}  // namespace
}  // namespace ballast::sim
