#include "server/collective/reduce_order.h"

#include "gtest/gtest.h"

namespace ballast::collective {
namespace {

using Entered = std::optional<ReduceRequest>;

Entered Request(int bucket, int64_t step) {
  return ReduceRequest{BucketId(bucket), Step(step)};
}

TEST(ReduceOrderTest, EntersInLayoutOrderWhateverIsAskedFirst) {  // I9
  ReduceOrder order(3, 8);
  order.Request(BucketId(2), Step(1));
  EXPECT_EQ(order.Enter(), Entered());
  order.Request(BucketId(0), Step(1));
  EXPECT_EQ(order.Enter(), Request(0, 1));
  EXPECT_EQ(order.Enter(), Entered());
  order.Request(BucketId(1), Step(1));
  EXPECT_EQ(order.Enter(), Request(1, 1));
  EXPECT_EQ(order.Enter(), Request(2, 1));
  EXPECT_EQ(order.Enter(), Entered());
}

TEST(ReduceOrderTest, WindowsBoundWhatIsInFlight) {  // I23
  ReduceOrder order(5, 2);
  for (int b = 0; b < 5; ++b) order.Request(BucketId(b), Step(1));
  EXPECT_EQ(order.Enter(), Request(0, 1));
  EXPECT_EQ(order.Enter(), Request(1, 1));
  EXPECT_EQ(order.Enter(), Entered());
  order.Leave(BucketId(1));  // bucket 2 needs the window of bucket 0
  EXPECT_EQ(order.Enter(), Entered());
  order.Leave(BucketId(0));
  EXPECT_EQ(order.Enter(), Request(2, 1));
  EXPECT_EQ(order.Enter(), Request(3, 1));
  EXPECT_EQ(order.Enter(), Entered());
}

TEST(ReduceOrderTest, TheNextStepBeginsWithTheFirstBucket) {
  ReduceOrder order(3, 2);
  for (int64_t step = 1; step <= 4; ++step) {
    for (int b = 2; b >= 0; --b) order.Request(BucketId(b), Step(step));
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(order.Enter(), Request(b, step));
      order.Leave(BucketId(b));
    }
    EXPECT_EQ(order.Enter(), Entered());
  }
}

TEST(ReduceOrderTest, NoBucketsNothingEnters) {
  ReduceOrder order(0, 1);
  EXPECT_EQ(order.Enter(), Entered());
}

}  // namespace
}  // namespace ballast::collective
