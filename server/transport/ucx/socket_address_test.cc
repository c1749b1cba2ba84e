#include "server/transport/ucx/socket_address.h"

#include <string>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::transport {
namespace {

using base::IsOk;
using base::StatusIs;

TEST(SocketAddressTest, ComesBackAsItWas) {
  for (const std::string text : {"10.0.0.1:47011", "[fd00::1]:1"}) {
    const auto address = SocketAddress::FromString(text);
    ASSERT_THAT(address, IsOk());
    EXPECT_EQ(address->ToString(), text);
  }
}

// I27: it comes from a peer.
TEST(SocketAddressTest, RefusesWhatIsNone) {
  for (const std::string text :
       {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536",
        "10.0.0.1:-1", "host:80", "300.0.0.1:80", "[]:80", "10.0.0.1:8x"}) {
    EXPECT_THAT(SocketAddress::FromString(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(SocketAddressTest, FindsTheAddressOfADevice) {
  const auto loopback = SocketAddress::OfDevice("lo");
  ASSERT_THAT(loopback, IsOk());
  EXPECT_EQ(loopback->ToString(), "127.0.0.1:0");
  for (const std::string device : {"", "no-such-device", "lo,lo"}) {
    EXPECT_THAT(SocketAddress::OfDevice(device),
                StatusIs(absl::StatusCode::kInvalidArgument, device));
  }
}

}  // namespace
}  // namespace ballast::transport
