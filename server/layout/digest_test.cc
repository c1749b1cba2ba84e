#include "server/layout/digest.h"

#include "gtest/gtest.h"

namespace ballast::layout {
namespace {

TEST(DigestTest, IsSixteenHexDigitsOfXxh3) {
  // XXH3_64bits of no bytes, by the library's own documentation.
  EXPECT_EQ(Digest().ToHex(), "2d06800538d394c2");
}

TEST(DigestTest, LengthsKeepSequencesApart) {
  EXPECT_NE(Digest().Add("ab").Add("c").ToHex(),
            Digest().Add("a").Add("bc").ToHex());
  EXPECT_EQ(Digest().Add("ab").Add("c").ToHex(),
            Digest().Add("ab").Add("c").ToHex());
}

TEST(DigestTest, EveryBitOfAValueCounts) {
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(Digest().Add(int64_t{0}).ToHex(),
              Digest().Add(static_cast<int64_t>(uint64_t{1} << bit)).ToHex());
  }
}

}  // namespace
}  // namespace ballast::layout
