#include "server/ipc/token.h"

#include "gtest/gtest.h"

namespace ballast::ipc {
namespace {

TEST(TokenTest, ComparesWholeStrings) {
  EXPECT_TRUE(ConstantTimeEquals("", ""));
  EXPECT_TRUE(ConstantTimeEquals("secret", "secret"));
  EXPECT_FALSE(ConstantTimeEquals("secret", "secreT"));
  EXPECT_FALSE(ConstantTimeEquals("Secret", "secret"));
  EXPECT_FALSE(ConstantTimeEquals("secret", "secre"));
  EXPECT_FALSE(ConstantTimeEquals("secre", "secret"));
  EXPECT_FALSE(ConstantTimeEquals("", "secret"));
  EXPECT_FALSE(ConstantTimeEquals("secret", ""));
  // Not fooled by wrapping around.
  EXPECT_FALSE(ConstantTimeEquals("aa", "a"));
}

}  // namespace
}  // namespace ballast::ipc
