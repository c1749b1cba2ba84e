#include "server/transport/ucx/endpoint_token.h"

#include <string>

#include "gtest/gtest.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"

namespace ballast::transport {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kSeed = 3;

std::string SomeToken() {
  return EncodeToken({NodeRank(2), Incarnation(99), std::string("a\0b", 3)},
                     kSeed);
}

TEST(EndpointTokenTest, ComesBackAsItWas) {
  const auto token = DecodeToken(SomeToken(), kSeed);
  ASSERT_THAT(token, IsOk());
  EXPECT_EQ(token->node, NodeRank(2));
  EXPECT_EQ(token->incarnation, Incarnation(99));
  EXPECT_EQ(token->address, std::string("a\0b", 3));
}

// I27: nothing but what a node made reaches UCX.
TEST(EndpointTokenTest, FindsEveryFlippedBitAndCut) {
  const std::string good = SomeToken();
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_THAT(DecodeToken(bad, kSeed), StatusIs(kInvalid)) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(DecodeToken(good.substr(0, size), kSeed), StatusIs(kInvalid));
  }
  EXPECT_THAT(DecodeToken(good + "x", kSeed), StatusIs(kInvalid));
  EXPECT_THAT(DecodeToken(good, kSeed + 1), StatusIs(kInvalid, "checksum"));
  EXPECT_THAT(DecodeToken(std::string(1 << 20, 'x'), kSeed),
              StatusIs(kInvalid));
}

TEST(EndpointTokenTest, RefusesRandomBytes) {
  base::SeededRandom random(1);
  for (int i = 0; i < 10000; ++i) {
    std::string bytes(random.Below(100), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Next());
    EXPECT_FALSE(DecodeToken(bytes, kSeed).ok());
  }
}

}  // namespace
}  // namespace ballast::transport
