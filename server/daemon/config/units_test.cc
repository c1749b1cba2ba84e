#include "server/daemon/config/units.h"

#include "gtest/gtest.h"

namespace ballast::daemon {
namespace {

TEST(UnitsTest, ParsesSizes) {
  EXPECT_EQ(ParseSize("0"), 0);
  EXPECT_EQ(ParseSize("4096"), 4096);
  EXPECT_EQ(ParseSize("256KiB"), 256 << 10);
  EXPECT_EQ(ParseSize("4 MiB"), 4 << 20);
  EXPECT_EQ(ParseSize("1kB"), 1000);
  EXPECT_EQ(ParseSize("18446744073709551615"), UINT64_MAX);
}

TEST(UnitsTest, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "KiB", "-1", "+1", "1.5MiB", "1 k", " 1",
                          "18446744073709551616", "17000000TiB", "0x10"}) {
    EXPECT_FALSE(ParseSize(bad).has_value()) << bad;
  }
}

TEST(UnitsTest, FormatRoundTrips) {
  EXPECT_EQ(FormatSize(256 << 10), "256KiB");
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40,
                              uint64_t{3} << 20, uint64_t{1234567}}) {
    EXPECT_EQ(ParseSize(FormatSize(size)), size);
  }
}

TEST(UnitsTest, ParsesDurations) {
  EXPECT_EQ(ParseDuration("10m"), absl::Minutes(10));
  EXPECT_EQ(ParseDuration("1h30m"), absl::Minutes(90));
  for (const char* bad : {"", "10", "-1s", "inf", "soon"}) {
    EXPECT_FALSE(ParseDuration(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace ballast::daemon
