// Nodes that lose one another and meet again (I20): any preset, any node, any
// moment; and what must not go on.
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

using ::testing::HasSubstr;

Scenario Parse(const std::string& text) {
  const auto parsed = ParseScenario("relink", text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

std::string Violations(const Result& result) {
  return absl::StrJoin(result.violations, "\n");
}

// One to four faults, of any nodes, at any moment; long cuts among them.
std::string RandomFaults(uint64_t seed) {
  base::SeededRandom random(seed);
  const char* const exchanges[] = {
      "exact",
      "zeropp override:a=int8 override:b=int4",
      "zeropp override:a=int8 override:b=int4 gradients.error_feedback=true",
      "delta4 override:a=int8 override:b=int4",
      "delta4 override:b=int4 gradients.error_feedback=true",
      "delta2 override:b=int4 resync_every_steps=2",
  };
  const bool has_groups = random.Below(4) == 0;
  const uint64_t owners = 2 + random.Below(2);
  const uint64_t nodes = has_groups ? 2 * owners : owners;
  std::string exchange = exchanges[random.Below(has_groups ? 2 : 5)];
  if (has_groups) absl::StrAppend(&exchange, " partition_nodes=", owners);
  std::string text = absl::StrCat(
      "nodes ", nodes, "\nworkers ", 1 + random.Below(2), "\nexchange ",
      exchange, "\ntensor a float32 3x3001\ntensor b ",
      random.Below(2) == 0 ? "bfloat16" : "float16",
      " 9001\noptimizer adamw lr 0.01\nsteps 7\nclip 1.0\nbucket_bytes ",
      8192 << random.Below(3), "\n",
      random.Below(2) == 0 ? "overlap\n" : "push_order random\n");
  if (random.Below(2) == 0) {
    absl::StrAppend(&text, "link delay 5us 3ms loss 0.1 duplicate 0.1\n");
  }
  if (random.Below(3) == 0) absl::StrAppend(&text, "load 4\n");
  for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
    const uint64_t step = 2 + random.Below(6);
    const uint64_t node = random.Below(nodes);
    absl::StrAppend(&text, "at step ", step,
                    random.Below(4) == 0
                        ? absl::StrCat(" cut node ", node, " back ",
                                       30 + random.Below(60), "s\n")
                        : absl::StrCat(" restart node ", node, " back ",
                                       1 + random.Below(2000), "ms\n"));
  }
  if (random.Below(3) == 0) absl::StrAppend(&text, "at step 3 nan rank 0\n");
  if (random.Below(3) == 0) {
    absl::StrAppend(&text, "at step 5 lr rank 1 0.5\n");
  }
  return text;
}

TEST(SimRelinkTest, AnyMomentOfAnyJobChangesNoBit) {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    const std::string text = RandomFaults(seed);
    const Result result =
        Cluster(Parse(text), seed, kernels::Reference()).Run();
    EXPECT_EQ(Violations(result), "") << "seed " << seed << text;
  }
}

constexpr char kSmall[] = R"(
nodes 2
workers 1
tensor wte float32 5x2049
optimizer adam lr 0.01
bucket_bytes 8192
steps 6
)";

// The control: a keeper that hands out what was recorded three steps ago. Two
// nodes that do not fit together never go on.
TEST(SimRelinkControlTest, AMemoryThatIsTooOldIsRefused) {
  Cluster cluster(Parse(absl::StrCat(kSmall, "at step 9 restart node 1\n",
                                     "expect contradicts itself\n")),
                  /*seed=*/1, kernels::Reference());
  cluster.Start();
  const auto run_to = [&cluster](int64_t version) {
    while (cluster.node(1).Find(kJobName) == nullptr ||
           cluster.node(1).Find(kJobName)->engine().weight_version().value() <
               version) {
      ASSERT_TRUE(cluster.clock().Step());
    }
  };
  run_to(1);
  // As it is now, whatever follows.
  cluster.vault(1).Freeze();
  run_to(4);
  cluster.KillNow(1, absl::Milliseconds(20), /*freezes=*/false);
  const Result result = cluster.Finish();
  EXPECT_EQ(Violations(result), "");
}

// I23: what the others wait for, in words.
TEST(SimRelinkTest, StatusSaysWhoIsAway) {
  Cluster cluster(
      Parse(absl::StrCat(kSmall, "at step 3 restart node 1 back ", "20s\n")),
      /*seed=*/1, kernels::Reference());
  cluster.Start();
  std::string seen;
  for (int i = 0; i < 4000 && !absl::StrContains(seen, "has not come"); ++i) {
    cluster.clock().RunFor(absl::Milliseconds(5));
    const auto jobs = cluster.node(0).Jobs();
    if (!jobs.empty()) seen = jobs[0].waiting_for();
  }
  EXPECT_THAT(seen, HasSubstr("the nodes have lost one another"));
  EXPECT_THAT(seen, HasSubstr("node 1 of 2 has not come"));
  EXPECT_EQ(Violations(cluster.Finish()), "");
}

}  // namespace
}  // namespace ballast::sim
