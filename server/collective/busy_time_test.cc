#include "server/collective/busy_time.h"

#include "gtest/gtest.h"

namespace ballast::collective {
namespace {

class HandClock final : public base::Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

TEST(BusyTimeTest, WhatOverlapsCountsOnce) {
  HandClock clock;
  BusyTime busy(&clock);
  const auto pass = [&clock](int seconds) {
    clock.now += absl::Seconds(seconds);
  };
  pass(1);
  EXPECT_EQ(busy.total(), absl::ZeroDuration());
  busy.Begin();
  pass(2);
  busy.Begin();
  pass(4);
  EXPECT_EQ(busy.total(), absl::Seconds(6));
  busy.End();
  pass(8);
  busy.End();
  pass(16);
  EXPECT_EQ(busy.total(), absl::Seconds(14));
  busy.Begin();
  pass(1);
  busy.End();
  EXPECT_EQ(busy.total(), absl::Seconds(15));
}

TEST(BusyTimeTest, WithoutAClockNoTimePasses) {
  BusyTime busy(nullptr);
  busy.Begin();
  EXPECT_EQ(busy.total(), absl::ZeroDuration());
}

}  // namespace
}  // namespace ballast::collective
