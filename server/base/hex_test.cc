#include "server/base/hex.h"

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

TEST(HexTest, RoundTrip) {
  const std::vector<uint8_t> bytes = {0x00, 0x0f, 0xa5, 0xff};
  EXPECT_EQ(ToHex(bytes), "000fa5ff");
  EXPECT_EQ(FromHex("000fa5ff"), bytes);
  EXPECT_EQ(FromHex("000FA5FF"), bytes);
  EXPECT_EQ(FromHex(""), std::vector<uint8_t>());
}

TEST(HexTest, RefusesOtherText) {
  for (const char* text : {"0", "0g", "g0", " 0", "0x", "00 "}) {
    EXPECT_EQ(FromHex(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace ballast::base
