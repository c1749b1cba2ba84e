#include "tests/sim/scenario.h"

#include <utility>
#include <vector>

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
at step 6 stop node 1 after 2ms back 3s
at step 6 stop rank 1 back 3s
at step 7 kill_keeper node 0 after 1ms
at step 0 lose_reply begin rank 2
at step 8 lose_request poll node 1 maybe
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
  EXPECT_TRUE(scenario->faults[4].is_node);
  EXPECT_EQ(scenario->faults[4].after, absl::Milliseconds(2));
  EXPECT_EQ(scenario->faults[4].back_after, absl::Seconds(3));
  EXPECT_FALSE(scenario->faults[5].is_node);
  EXPECT_EQ(scenario->faults[5].after, absl::ZeroDuration());
  EXPECT_EQ(scenario->faults[6].after, absl::Milliseconds(1));
  EXPECT_EQ(scenario->faults[7].what, "begin");
  EXPECT_FALSE(scenario->faults[7].is_node);
  EXPECT_FALSE(scenario->faults[7].may_miss);
  EXPECT_EQ(scenario->faults[8].what, "poll");
  EXPECT_TRUE(scenario->faults[8].is_node);
  EXPECT_TRUE(scenario->faults[8].may_miss);
  EXPECT_EQ(scenario->expect_failure, "it is over");
}

TEST(ScenarioTest, SaysWhichLivesFollow) {
  const auto scenario = ParseScenario("x", R"(
nodes 3
workers 2
tensor w float32 5
replica_every 2
at step 2 kill node 1
expect node
then from 2 new 0 new
steps 9
disk fails_after 7 times 2
power_fails_after 30 torn
then
nodes 1
begins_after 3
)");
  ASSERT_TRUE(scenario.ok()) << scenario.status();
  EXPECT_EQ(scenario->nodes, 3);
  ASSERT_EQ(scenario->next.size(), 1);
  const Scenario& second = scenario->next[0];
  EXPECT_EQ(second.from, (std::vector<int>{2, -1, 0, -1}));
  EXPECT_EQ(second.nodes, 4);
  EXPECT_EQ(second.workers, 2);
  EXPECT_EQ(second.replica_every, 2);
  EXPECT_TRUE(second.faults.empty());
  EXPECT_TRUE(second.expect_failure.empty());
  EXPECT_EQ(second.disk->fails_after, 7);
  EXPECT_EQ(second.disk->failures, 2);
  EXPECT_EQ(second.power_fails_after, 30);
  EXPECT_TRUE(second.tears);
  ASSERT_EQ(second.next.size(), 1);
  const Scenario& third = second.next[0];
  EXPECT_TRUE(third.from.empty());
  EXPECT_EQ(third.nodes, 1);
  EXPECT_EQ(third.steps, 9);
  EXPECT_EQ(third.begins_after, 3);
  EXPECT_EQ(third.power_fails_after, 0);
  EXPECT_EQ(third.disk->failures, 0) << "it works again";
  EXPECT_TRUE(third.next.empty());
}

// Each with the remedy.
TEST(ScenarioTest, RefusesLivesThatCannotFollow) {
  const std::pair<const char*, const char*> wrong[] = {
      {"then", "power_fails_after N"},
      {"power_fails_after 3", "say \"then\""},
      {"power_fails_after 0", "1 change of the disk or more"},
      {"power_fails_after 3\nthen from 0", "power_fails_after N"},
      {"then from 0", "without replica_every K"},
      {"replica_every 1\nthen from", "then from 0 new"},
      {"replica_every 1\nthen from 2", "has no node 2"},
      {"replica_every 1\nthen from 0 0", "node 0 is there twice"},
      {"replica_every 1\nthen from x", "\"x\" is not a number"},
      {"replica_every 1\nat step 2 kill node 1\nthen from 0 1",
       "node 1 is killed before: say new"},
      {"replica_every 1\nthen from 0 new\nnodes 3", "names 2"},
      {"disk broken", "fails_after CHANGES"},
  };
  for (const auto& [lines, why] : wrong) {
    const auto scenario = ParseScenario(
        "x", absl::StrCat("tensor a float32 1\nnodes 2\n", lines, "\n"));
    ASSERT_FALSE(scenario.ok()) << lines;
    EXPECT_THAT(std::string(scenario.status().message()),
                ::testing::ContainsRegex(why))
        << lines;
  }
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
      "at step 3 nan node 0",
      "at step 3 cut rank 0",
      "at step 3 stop rank 0",
      "at step 3 stop node 0 after",
      "at step 3 crash rank 0 after 3ms",
      "at step 3 kill_keeper rank 0",
      "at step 3 lose_request begin node 0",
      "at step 3 lose_request vote node 0",
      "at step 3 lose_request sigh rank 0",
      "at step 3 lose_reply rank 0",
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
