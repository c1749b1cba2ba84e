#include "kernels/canonical_tree.h"

#include <bit>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

using Ranges = std::vector<RankRange>;

TEST(CanonicalTreeTest, LeftChildIsTheLargestPowerOfTwoBelow) {
  const int expected[] = {1, 2, 2, 4, 4, 4, 4, 8, 8};
  for (int count = 2; count <= 10; ++count) {
    EXPECT_EQ(LeftCount(count), expected[count - 2]) << count;
  }
}

TEST(CanonicalTreeTest, WholeRangeIsOneSubtree) {
  for (int world = 1; world <= 70; ++world) {
    EXPECT_EQ(MaximalSubtrees({0, world}, world), Ranges({{0, world}}));
  }
}

TEST(CanonicalTreeTest, SubtreesOfExamples) {
  EXPECT_EQ(MaximalSubtrees({4, 2}, 6), Ranges({{4, 2}}));
  EXPECT_EQ(MaximalSubtrees({3, 3}, 6), Ranges({{3, 1}, {4, 2}}));
  EXPECT_EQ(MaximalSubtrees({1, 6}, 8),
            Ranges({{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  EXPECT_EQ(MaximalSubtrees({2, 0}, 6), Ranges());
}

TEST(CanonicalTreeTest, AlignedPowerOfTwoIsOneSubtree) {
  for (int node = 0; node < 5; ++node) {
    EXPECT_EQ(MaximalSubtrees({node * 4, 4}, 20).size(), 1) << node;
  }
}

// I14: every rank is in exactly one subtree, for every cut of the ranks.
TEST(CanonicalTreeTest, SubtreesOfAnyTwoNodesCoverAllRanksOnce) {
  for (int world = 1; world <= 40; ++world) {
    for (int cut = 0; cut <= world; ++cut) {
      Ranges all = MaximalSubtrees({0, cut}, world);
      for (RankRange r : MaximalSubtrees({cut, world - cut}, world)) {
        all.push_back(r);
      }
      int next = 0;
      for (RankRange r : all) {
        EXPECT_EQ(r.first, next);
        next += r.count;
      }
      EXPECT_EQ(next, world);
      EXPECT_TRUE(IsTreeCover(all, world)) << world << " cut at " << cut;
    }
  }
}

TEST(CanonicalTreeTest, NumberOfSubtreesIsBounded) {
  for (int world = 1; world <= 64; ++world) {
    for (int first = 0; first < world; ++first) {
      for (int count = 1; first + count <= world; ++count) {
        const int log2 = std::bit_width(static_cast<unsigned>(count)) - 1;
        EXPECT_LE(MaximalSubtrees({first, count}, world).size(), 2 * log2 + 1);
      }
    }
  }
}

TEST(CanonicalTreeTest, RefusesWhatIsNoCover) {
  EXPECT_FALSE(IsTreeCover({}, 0));
  EXPECT_FALSE(IsTreeCover({}, 2));
  EXPECT_FALSE(IsTreeCover(Ranges({{0, 2}, {2, 1}}), 4));    // too short
  EXPECT_FALSE(IsTreeCover(Ranges({{0, 3}, {3, 1}}), 4));    // no subtree
  EXPECT_FALSE(IsTreeCover(Ranges({{0, 4}, {0, 4}}), 4));    // twice
  EXPECT_FALSE(IsTreeCover(Ranges({{2, 2}, {0, 2}}), 4));    // order
  EXPECT_FALSE(IsTreeCover(Ranges({{0, 0}, {0, 2}}), 2));    // empty
  EXPECT_FALSE(IsTreeCover(Ranges({{0, -1}, {-1, 5}}), 4));  // negative
  EXPECT_TRUE(IsTreeCover(Ranges({{0, 2}, {2, 1}, {3, 1}}), 4));
}

}  // namespace
}  // namespace ballast::kernels
