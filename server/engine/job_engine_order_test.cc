#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/engine/fake_neighbours.h"
#include "server/engine/job_engine_testing.h"

namespace ballast::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// I9, I19: contributions in any order, with repetitions and overlapping the
// publish of the step before, give the same decisions and the same sums.
class AnyOrder : public JobEngineTest {
 protected:
  static constexpr int kBuckets = 5;
  static constexpr int kSteps = 4;

  // What everybody else sees of a run: votes and calls that count, sorted
  // within a step where order is free.
  std::string Run(uint64_t seed, bool lose_one_push = false) {
    base::SeededRandom random(seed);
    Make(kBuckets);
    std::string seen;
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<std::pair<int, int>> events;  // (rank, bucket or input)
      for (int l = 0; l < kRanks; ++l) {
        for (int b = 0; b <= kBuckets; ++b) events.push_back({l, b});
      }
      if (lose_one_push) events.erase(events.begin());
      for (int i = 0; i < 4; ++i) {  // repetitions
        events.push_back(events[random.Below(events.size())]);
      }
      for (size_t i = events.size(); i > 1; --i) {
        std::swap(events[i - 1], events[random.Below(i)]);
      }
      for (const auto& [rank, what] : events) {
        if (what == kBuckets) {
          Input(rank);
        } else {
          Push(rank, what);
        }
        Settle(&random);
      }
      while (Settle(&random)) {
      }
      if (members_.votes.size() != step) return seen + "stuck";
      absl::StrAppend(&seen, members_.votes.back().SerializeAsString(), "\n");
      engine_->OnCommit(CommitOf(step));
    }
    while (Settle(&random)) {
    }
    absl::StrAppend(&seen, engine_->weight_version().value());
    return seen;
  }

  // One outstanding operation of the neighbours ends, in any order.
  bool Settle(base::Random* random) {
    for (const std::string& line : TakeLog()) {
      std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words[0] == "reduce" || words[0] == "update" ||
          words[0] == "publish") {
        outstanding_.push_back({words[0], std::stoi(words[1])});
      }
    }
    if (outstanding_.empty()) return false;
    const size_t pick = random->Below(outstanding_.size());
    const auto [what, bucket] = outstanding_[pick];
    outstanding_.erase(outstanding_.begin() + pick);
    if (what == "reduce") Reduced(bucket, bucket + 1);
    if (what == "update") Updated(bucket);
    if (what == "publish") Published(bucket);
    return true;
  }

  std::vector<std::pair<std::string, int>> outstanding_;
};

TEST_F(AnyOrder, GivesTheSameDecisions) {
  const std::string expected = Run(1);
  EXPECT_EQ(expected.back(), '4');
  for (uint64_t seed = 2; seed <= 300; ++seed) {
    outstanding_.clear();
    ASSERT_EQ(Run(seed), expected) << seed;
  }
}

TEST_F(AnyOrder, WithoutOnePushThereIsNoCommit) {  // I19, the control
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    outstanding_.clear();
    EXPECT_EQ(Run(seed, /*lose_one_push=*/true), "stuck");
  }
}

// I20: gradients that were reduced for nobody are reduced again; nothing of a
// step that is not committed has taken effect.
TEST_F(JobEngineTest, AnOpenStepIsReducedAgain) {
  Make(2);
  PushAll();
  Input(0);
  Input(1);
  Reduced(0);
  engine_->Suspend();
  log_.clear();
  engine_->Start(Generation(1), Step(1), &collective_);
  PushAll();
  Input(0);
  Input(1);
  EXPECT_THAT(log_, ElementsAre("open 1/1", "reduce 0@1", "reduce 1@1"));
  Reduced(0);
  Reduced(1);
  ASSERT_EQ(members_.votes.size(), 1);
  EXPECT_EQ(engine_->counts().strays, 0);
}

// What was updated and published stays so; all of it goes out again, and is
// told and counted once.
TEST_F(JobEngineTest, ACommittedStepIsCarriedOutAgain) {
  for (const bool is_finished : {false, true}) {
    Make(2);
    PushAll();
    Input(0);
    Input(1);
    Reduced(0);
    Reduced(1);
    engine_->OnCommit(CommitOf(1));
    Updated(0);
    Published(0);
    if (is_finished) {
      Updated(1);
      Published(1);
    }
    engine_->Suspend();
    if (!is_finished) Updated(1);
    EXPECT_EQ(engine_->updates_in_flight(), 0);
    ASSERT_TRUE(
        engine_->GoOn(Generation(1), CommitOf(1), false, &collective_).ok());
    for (const int b : {0, 1}) Updated(b);
    for (const int b : {0, 1}) Published(b);
    EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
    EXPECT_EQ(engine_->open_step(), Step(2));
    EXPECT_EQ(engine_->counts().committed, 1);
    EXPECT_EQ(engine_->counts().strays, 0);
    EXPECT_THAT(log_, Contains("publish 0@1").Times(2));
  }
}

// The node voted, and did not hear of the commit.
TEST_F(JobEngineTest, ACommitIsAdoptedOnceTheCursorsAreThere) {
  Make(2);
  PushAll();
  Input(0);
  Input(1);
  Reduced(0);
  Reduced(1);
  engine_->Suspend();
  log_.clear();
  engine_->Adopt(Generation(1), CommitOf(1), &collective_);
  Input(0);
  PushAll();
  EXPECT_THAT(log_, ElementsAre("open 1/1"));
  Input(1);
  EXPECT_THAT(log_, Contains("committed 1"));
  EXPECT_THAT(log_, Contains("open 1/2"));
  EXPECT_THAT(log_, Not(Contains(HasSubstr("reduce"))));
  EXPECT_EQ(state_.scalars().cursors,
            std::vector<std::string>({"cursor0", "cursor1"}));
  for (const int b : {0, 1}) Updated(b);
  for (const int b : {0, 1}) Published(b);
  EXPECT_EQ(engine_->weight_version(), WeightVersion(1));
  EXPECT_EQ(engine_->counts().strays, 0);
}

}  // namespace
}  // namespace ballast::engine
