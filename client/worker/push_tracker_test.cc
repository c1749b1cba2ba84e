#include "client/worker/push_tracker.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Buckets = std::vector<int32_t>;

// Tensor 0 in buckets 0-1, 1 in 1, 2 in 1-3, 3 in none.
PushTracker Example() {
  auto tracker = PushTracker::Create({{0, 1}, {1, 1}, {1, 3}, {-1, -1}}, 4);
  EXPECT_THAT(tracker, IsOk());
  return *std::move(tracker);
}

TEST(PushTrackerTest, BucketGoesWithItsLastTensor) {
  PushTracker tracker = Example();
  Buckets ready;
  tracker.Push(2, ready);
  EXPECT_THAT(ready, ElementsAre(2, 3));
  ready.clear();
  tracker.Push(1, ready);
  EXPECT_THAT(ready, IsEmpty());
  tracker.Push(0, ready);
  EXPECT_THAT(ready, ElementsAre(0, 1));
}

TEST(PushTrackerTest, SecondPushOfATensorChangesNothing) {  // I19
  PushTracker tracker = Example();
  Buckets ready;
  tracker.Push(1, ready);
  tracker.Push(1, ready);
  tracker.Push(1, ready);
  tracker.Push(2, ready);
  EXPECT_THAT(ready, ElementsAre(2, 3));  // tensor 0 is missing in bucket 1
}

TEST(PushTrackerTest, RestIsWhatWasNotPushed) {
  PushTracker tracker = Example();
  Buckets ready;
  tracker.Push(2, ready);
  ready.clear();
  tracker.PushRest(ready);
  EXPECT_THAT(ready, ElementsAre(0, 1));
  ready.clear();
  tracker.PushRest(ready);
  EXPECT_THAT(ready, IsEmpty());
}

TEST(PushTrackerTest, BucketsThatTheDaemonHasAreSkipped) {  // I19
  PushTracker tracker = Example();
  EXPECT_TRUE(tracker.MarkPushed(1));
  EXPECT_TRUE(tracker.MarkPushed(3));
  EXPECT_FALSE(tracker.MarkPushed(4));
  EXPECT_FALSE(tracker.MarkPushed(-1));
  EXPECT_FALSE(tracker.any_pushed());
  Buckets ready;
  tracker.Push(2, ready);
  EXPECT_THAT(ready, ElementsAre(2));
  tracker.PushRest(ready);
  EXPECT_THAT(ready, ElementsAre(2, 0));
}

TEST(PushTrackerTest, ResetStartsOver) {
  PushTracker tracker = Example();
  Buckets ready;
  tracker.PushRest(ready);
  tracker.Reset();
  EXPECT_FALSE(tracker.any_pushed());
  ready.clear();
  tracker.PushRest(ready);
  EXPECT_THAT(ready, ElementsAre(0, 1, 2, 3));
}

TEST(PushTrackerTest, TensorWithoutBucketPushesNothing) {  // I4
  PushTracker tracker = Example();
  Buckets ready;
  tracker.Push(3, ready);
  EXPECT_THAT(ready, IsEmpty());
  EXPECT_FALSE(tracker.any_pushed());
}

TEST(PushTrackerTest, JobWithoutBuckets) {  // I4
  auto tracker = PushTracker::Create({{-1, -1}}, 0);
  ASSERT_THAT(tracker, IsOk());
  Buckets ready;
  tracker->PushRest(ready);
  EXPECT_THAT(ready, IsEmpty());
}

TEST(PushTrackerTest, RefusesImpossiblePlaces) {  // I27
  const auto kDataLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(PushTracker::Create({{0, 4}}, 4), StatusIs(kDataLoss));
  EXPECT_THAT(PushTracker::Create({{2, 1}}, 4), StatusIs(kDataLoss));
  EXPECT_THAT(PushTracker::Create({{-1, 1}}, 4), StatusIs(kDataLoss));
  EXPECT_THAT(PushTracker::Create({{0, 0}}, 2),
              StatusIs(kDataLoss, "bucket 1 has no tensor"));
}

}  // namespace
}  // namespace ballast::worker
