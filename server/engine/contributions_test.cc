#include "server/engine/contributions.h"

#include <vector>

#include "gtest/gtest.h"

namespace ballast::engine {
namespace {

GroupList Groups(double lr) {
  return {proto::GroupValues{.lr = lr,
                             .beta1 = 0.9,
                             .beta2 = 0,
                             .eps = 0,
                             .weight_decay = 0,
                             .momentum = 0,
                             .dampening = 0,
                             .nesterov = 0,
                             .lr_decay = 0,
                             .initial_accumulator_value = 0,
                             .max_norm = 0,
                             .load = 0}};
}

TEST(ContributionsTest, EachCountsOnce) {  // I19
  Contributions contributions(2, 3, Rank(4));
  EXPECT_TRUE(contributions.is_empty());
  EXPECT_TRUE(contributions.AddPush(LocalRank(0), BucketId(2)));
  EXPECT_FALSE(contributions.AddPush(LocalRank(0), BucketId(2)));
  EXPECT_FALSE(contributions.IsCollected(BucketId(2)));
  EXPECT_TRUE(contributions.AddPush(LocalRank(1), BucketId(2)));
  EXPECT_TRUE(contributions.IsCollected(BucketId(2)));
  EXPECT_TRUE(contributions.AddInput(LocalRank(1), Groups(1), "c"));
  EXPECT_FALSE(contributions.AddInput(LocalRank(1), Groups(2), "d"));
  EXPECT_FALSE(contributions.AddRefusal(LocalRank(1), absl::InternalError("")));
  EXPECT_FALSE(contributions.has_all_inputs());
}

TEST(ContributionsTest, OutOfRangeIsNothing) {  // I26
  Contributions contributions(2, 3, Rank(4));
  for (int bad : {-1, 2, 1 << 30}) {
    EXPECT_FALSE(contributions.AddPush(LocalRank(bad), BucketId(0)));
    EXPECT_FALSE(contributions.AddInput(LocalRank(bad), Groups(1), ""));
  }
  EXPECT_FALSE(contributions.AddPush(LocalRank(0), BucketId(3)));
  EXPECT_FALSE(contributions.AddPush(LocalRank(0), BucketId(-1)));
  EXPECT_TRUE(contributions.is_empty());
}

TEST(ContributionsTest, SaysWhatIsMissing) {
  Contributions contributions(3, 2, Rank(6));
  contributions.AddPush(LocalRank(0), BucketId(0));
  for (int b : {0, 1}) contributions.AddPush(LocalRank(1), BucketId(b));
  for (int b : {0, 1}) contributions.AddPush(LocalRank(2), BucketId(b));
  contributions.AddInput(LocalRank(2), Groups(1), "");
  EXPECT_EQ(contributions.Missing(),
            "rank 6 has not pushed 1 of 2 buckets, rank 7 has not called step");
}

TEST(ContributionsTest, ClearForgetsAll) {  // I13
  Contributions contributions(1, 1, Rank(0));
  contributions.AddPush(LocalRank(0), BucketId(0));
  contributions.AddRefusal(LocalRank(0), absl::InternalError("no"));
  EXPECT_TRUE(contributions.is_complete());
  EXPECT_FALSE(contributions.Agreement().ok());
  contributions.Clear();
  EXPECT_TRUE(contributions.is_empty());
  EXPECT_TRUE(contributions.AddInput(LocalRank(0), Groups(1), "next"));
  EXPECT_TRUE(contributions.Agreement().ok());
  EXPECT_EQ(contributions.TakeCursors(), std::vector<std::string>{"next"});
}

TEST(ContributionsTest, EqualValuesAgree) {
  Contributions contributions(2, 0, Rank(0));
  contributions.AddInput(LocalRank(0), Groups(0.1), "");
  contributions.AddInput(LocalRank(1), Groups(0.1), "");
  EXPECT_TRUE(contributions.Agreement().ok());
  EXPECT_TRUE(contributions.is_complete());
}

TEST(ContributionsTest, SignOfZeroIsADifference) {
  Contributions contributions(2, 0, Rank(0));
  contributions.AddInput(LocalRank(0), Groups(0.0), "");
  contributions.AddInput(LocalRank(1), Groups(-0.0), "");
  EXPECT_EQ(contributions.Agreement().message(),
            "param group 0: lr is 0 on rank 0 but -0 on rank 1; all ranks must "
            "pass the same value");
}

}  // namespace
}  // namespace ballast::engine
