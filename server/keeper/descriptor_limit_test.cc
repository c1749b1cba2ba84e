#include "server/keeper/descriptor_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace ballast::keeper {
namespace {

TEST(DescriptorLimitTest, LeavesRoomForTheKeepersOwn) {
  EXPECT_EQ(HoldableUnder(RLIM_INFINITY, 65536), 65536);
  EXPECT_EQ(HoldableUnder(65536 + 32, 65536), 65536);
  EXPECT_EQ(HoldableUnder(65536, 65536), 65504);
  EXPECT_EQ(HoldableUnder(1024, 65536), 992);
  EXPECT_EQ(HoldableUnder(20, 65536), 0);
  EXPECT_EQ(HoldableUnder(0, 65536), 0);
}

TEST(DescriptorLimitTest, TheSoftLimitIsRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_LT(fcntl(1, F_DUPFD_CLOEXEC, 150), 0);
  EXPECT_EQ(RaiseDescriptorLimit(), before.rlim_max);
  const int fd = fcntl(1, F_DUPFD_CLOEXEC, 150);
  EXPECT_GE(fd, 150);
  close(fd);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace ballast::keeper
