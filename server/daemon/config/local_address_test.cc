#include "server/daemon/config/local_address.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast::daemon {
namespace {

TEST(LocalAddressTest, TakesTheNumericHost) {
  EXPECT_EQ(NumericHost("10.0.0.1:7470"), "10.0.0.1");
  EXPECT_EQ(NumericHost("[fd00::1]:7470"), "fd00::1");
  for (const char* none : {"", ":7470", "off", "node-0:7470", "0.0.0.0:7470",
                           "[::]:7470", "10.0.0:1", "[]:1"}) {
    EXPECT_EQ(NumericHost(none), std::nullopt) << none;
  }
}

TEST(LocalAddressTest, FindsAnAddress) {
  const std::string address = LocalAddress();
  const bool is_v6 = address.find(':') != std::string::npos;
  EXPECT_EQ(NumericHost(is_v6 ? absl::StrCat("[", address, "]:1")
                              : absl::StrCat(address, ":1")),
            address);
}

}  // namespace
}  // namespace ballast::daemon
