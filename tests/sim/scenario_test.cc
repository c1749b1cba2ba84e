#include "tests/sim/scenario.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::sim {
namespace {

using ::testing::HasSubstr;

TEST(ScenarioTest, SaysWhatItSays) {
  const auto scenario = ParseScenario("x", R"(
# a comment
nodes 2
workers 3   # another
tensor w bfloat16 3x4 group 1
tensor f float32 scalar frozen
optimizer adamw lr 0.5 beta1 0.25
group weight_decay 0.125
clip 2
link delay 1ms 2ms loss 0.5
at step 3 crash rank 5 back 2s
at step 4 lr rank 1 0.75
at step 5 corrupt node 1 member early unseen
at step 5 corrupt node 0 chunk 7
expect it is over
)");
  ASSERT_TRUE(scenario.ok()) << scenario.status();
  EXPECT_EQ(scenario->world_size(), 6);
  EXPECT_EQ(scenario->tensors[0].shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(scenario->tensors[0].group, 1);
  EXPECT_FALSE(scenario->tensors[1].trainable);
  EXPECT_TRUE(scenario->tensors[1].shape.empty());
  EXPECT_EQ(scenario->groups[1].lr, 0.5);
  EXPECT_EQ(scenario->groups[1].weight_decay, 0.125);
  EXPECT_EQ(scenario->link.max_delay, absl::Milliseconds(2));
  EXPECT_EQ(scenario->faults[0].back_after, absl::Seconds(2));
  EXPECT_EQ(scenario->faults[1].value, 0.75);
  EXPECT_EQ(scenario->faults[2].is_own, false);
  EXPECT_TRUE(scenario->faults[2].is_early && scenario->faults[2].is_unseen);
  EXPECT_EQ(scenario->faults[3].chunk, 7);
  EXPECT_FALSE(scenario->faults[3].is_own.has_value());
  EXPECT_FALSE(scenario->faults[3].is_early);
  EXPECT_EQ(scenario->expect_failure, "it is over");
}

TEST(ScenarioTest, NamesTheLineThatIsWrong) {
  const char* const wrong[] = {
      "frobnicate 3",
      "nodes two",
      "nodes 2 3",
      "tensor w float64 3",
      "tensor w float32 3xx",
      "tensor w float32 3 thawed",
      "optimizer lamb",
      "optimizer sgd lr fast",
      "push_order sideways",
      "link lag 3",
      "hold forever",
      "at step 3 explode rank 0",
      "at step 3 power_fails node 0",
      "at step 3 nan rank 7",
      "at step 3 nan",
      "at step 3 corrupt rank 0",
      "at step 3 corrupt node 0 chunk x",
      "at step 3 corrupt node 0 stranger",
      "at step 3 corrupt node 0 member unseen",
  };
  for (const char* line : wrong) {
    const auto scenario =
        ParseScenario("x", absl::StrCat("tensor a float32 1\n", line, "\n"));
    ASSERT_FALSE(scenario.ok()) << line;
    EXPECT_THAT(std::string(scenario.status().message()), HasSubstr("x:2: "));
    EXPECT_THAT(std::string(scenario.status().message()), HasSubstr(line));
  }
  EXPECT_FALSE(ParseScenario("x", "nodes 1").ok());
}

}  // namespace
}  // namespace ballast::sim
