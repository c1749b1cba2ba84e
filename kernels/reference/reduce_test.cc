#include "kernels/reference/reduce.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/canonical_tree.h"
#include "kernels/exact_sum.h"
#include "kernels/float_formats.h"
#include "kernels/reference/convert.h"

namespace ballast::kernels::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kCounts[] = {0, 1, 7, 255, 256, 257, 2047, 2048, 2049};

using Vector = std::vector<float>;
using Ranks = std::vector<Vector>;

Ranks RandomRanks(int world, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Ranks ranks(world, Vector(count));
  for (Vector& rank : ranks) {
    for (float& x : rank) x = normal(random);
  }
  return ranks;
}

Vector Sum(const Ranks& ranks, int first, int count_ranks) {
  std::vector<const void*> sources;
  for (int r = first; r < first + count_ranks; ++r) {
    sources.push_back(ranks[r].data());
  }
  Vector out(ranks[0].size());
  TreeSum(DType::kFloat32, sources, out.size(), out.data());
  return out;
}

// The mean as `nodes` (ranks per node, contiguous) compute it together.
Vector MeanOverNodes(const Ranks& ranks, const std::vector<int>& nodes) {
  const int world = static_cast<int>(ranks.size());
  std::vector<RankRange> ranges;
  std::vector<Vector> sums;
  int first = 0;
  for (const int local : nodes) {
    for (const RankRange range : MaximalSubtrees({first, local}, world)) {
      ranges.push_back(range);
      sums.push_back(Sum(ranks, range.first, range.count));
    }
    first += local;
  }
  EXPECT_TRUE(IsTreeCover(ranges, world));
  std::vector<const float*> parts;
  for (const Vector& sum : sums) parts.push_back(sum.data());
  Vector out(ranks[0].size());
  FinishMean(ranges, parts, world, out.size(), out.data());
  return out;
}

// Negative control: node sums added in rank order.
Vector PlainMeanOverNodes(const Ranks& ranks, const std::vector<int>& nodes) {
  Vector out(ranks[0].size());
  int first = 0;
  for (const int local : nodes) {
    const Vector sum = Sum(ranks, first, local);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = first == 0 ? sum[i] : out[i] + sum[i];
    }
    first += local;
  }
  for (float& x : out) x /= static_cast<float>(ranks.size());
  return out;
}

int Differences(const Vector& a, const Vector& b) {
  int different = 0;
  for (size_t i = 0; i < a.size(); ++i) different += Bits(a[i]) != Bits(b[i]);
  return different;
}

// An independent way to the same tree: complete subtrees on a stack, merged
// like the carries of a binary counter, the rest from the right.
float CounterSum(const Ranks& ranks, int64_t element) {
  std::vector<std::pair<int, float>> stack;
  const auto merge = [&stack] {
    const auto [count, right] = stack.back();
    stack.pop_back();
    stack.back().first += count;
    stack.back().second += right;
  };
  for (const Vector& rank : ranks) {
    stack.emplace_back(1, rank[element]);
    while (stack.size() > 1 &&
           stack.back().first == stack[stack.size() - 2].first) {
      merge();
    }
  }
  while (stack.size() > 1) merge();
  return stack[0].second;
}

TEST(ReduceTest, TreeSumEqualsTheBinaryCounter) {
  for (int world = 1; world <= 40; ++world) {
    const Ranks ranks = RandomRanks(world, 300, world);
    const Vector sum = Sum(ranks, 0, world);
    for (int64_t i = 0; i < 300; ++i) {
      ASSERT_EQ(Bits(sum[i]), Bits(CounterSum(ranks, i))) << world;
    }
  }
}

// I8: any cut of the ranks into nodes gives the same bits.
TEST(ReduceTest, AnySplitIntoNodesGivesTheSameBits) {
  for (int world = 1; world <= 9; ++world) {
    const Ranks ranks = RandomRanks(world, 257, 100 + world);
    const Vector expected = MeanOverNodes(ranks, {world});
    for (int cuts = 0; cuts < 1 << (world - 1); ++cuts) {
      std::vector<int> nodes = {1};
      for (int i = 0; i < world - 1; ++i) {
        if ((cuts >> i & 1) != 0) {
          nodes.push_back(1);
        } else {
          ++nodes.back();
        }
      }
      ASSERT_EQ(Differences(MeanOverNodes(ranks, nodes), expected), 0)
          << world << " ranks, cuts " << cuts;
    }
  }
}

// I8 for the shapes that the product promises, and its negative control.
TEST(ReduceTest, PlainSumOfNodesDiffers) {
  const Ranks six = RandomRanks(6, 5000, 1);
  const Vector expected = MeanOverNodes(six, {6});
  EXPECT_EQ(Differences(MeanOverNodes(six, {2, 2, 2}), expected), 0);
  EXPECT_EQ(Differences(MeanOverNodes(six, {3, 3}), expected), 0);
  EXPECT_EQ(Differences(MeanOverNodes(six, {1, 1, 1, 1, 1, 1}), expected), 0);
  EXPECT_GT(Differences(PlainMeanOverNodes(six, {3, 3}), expected), 500);
  EXPECT_GT(Differences(PlainMeanOverNodes(six, {1, 1, 1, 1, 1, 1}), expected),
            500);
}

// I6.
TEST(ReduceTest, MeanOfOnesIsOne) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (int world = 1; world <= 64; ++world) {
      const Vector ones(7, 1.0f);
      std::vector<uint32_t> raw(7);  // room for either size
      Cast(ones.data(), dtype, 7, raw.data());
      const std::vector<const void*> sources(world, raw.data());
      Vector sum(7);
      TreeSum(dtype, sources, 7, sum.data());
      const RankRange all[] = {{0, world}};
      const float* parts[] = {sum.data()};
      FinishMean(all, parts, world, 7, sum.data());
      EXPECT_EQ(sum, ones) << world;
    }
  }
}

TEST(ReduceTest, MeanIsWithinTheBoundOfTheDoubleMean) {
  for (const int world : {1, 2, 3, 5, 15, 24}) {
    const Ranks ranks = RandomRanks(world, 2049, 50 + world);
    const Vector mean = MeanOverNodes(ranks, {world});
    for (int64_t i = 0; i < 2049; ++i) {
      double sum = 0;
      double magnitude = 0;
      for (const Vector& rank : ranks) {
        sum += rank[i];
        magnitude += std::fabs(rank[i]);
      }
      EXPECT_LE(std::fabs(mean[i] - sum / world),
                world * 0x1p-24 * magnitude / world);
    }
  }
}

// The example of FORMAT.md, section 7.
TEST(ReduceTest, ExampleOfTheFormat) {
  const Ranks ranks = {{0x1p24f}, {1.0f}, {1.0f}, {1.0f}};
  EXPECT_EQ(Sum(ranks, 0, 4)[0], 0x1p24f + 2);
  EXPECT_EQ(MeanOverNodes(ranks, {1, 3})[0], 4194304.5f);
}

TEST(ReduceTest, NoSourceSumsToZero) {
  Vector out(3, 5.0f);
  TreeSum(DType::kFloat32, {}, 3, out.data());
  EXPECT_EQ(out, Vector(3, 0.0f));
}

TEST(ReduceTest, OutputMayBeAnInput) {
  const Ranks ranks = RandomRanks(5, 700, 9);
  const Vector sum = Sum(ranks, 0, 5);
  const Vector mean = MeanOverNodes(ranks, {2, 3});
  for (int alias = 0; alias < 5; ++alias) {
    Ranks copy = ranks;
    std::vector<const void*> sources;
    for (const Vector& rank : copy) sources.push_back(rank.data());
    TreeSum(DType::kFloat32, sources, 700, copy[alias].data());
    EXPECT_EQ(copy[alias], sum);

    copy = ranks;
    std::vector<RankRange> ranges;
    std::vector<const float*> parts;
    for (int r = 0; r < 5; ++r) {
      ranges.push_back({r, 1});
      parts.push_back(copy[r].data());
    }
    FinishMean(ranges, parts, 5, 700, copy[alias].data());
    EXPECT_EQ(copy[alias], mean);
  }
}

// I4, I13: counts around tiles; nothing behind the end is touched.
TEST(ReduceTest, CountsAndCanaries) {
  for (const int64_t count : kCounts) {
    const Ranks ranks = RandomRanks(3, count, 11);
    std::vector<const void*> sources;
    for (const Vector& rank : ranks) sources.push_back(rank.data());
    Vector out(count + 1, -7.0f);
    TreeSum(DType::kFloat32, sources, count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(out[i], (ranks[0][i] + ranks[1][i]) + ranks[2][i]);
    }
    EXPECT_EQ(out[count], -7.0f);
  }
}

TEST(ReduceTest, NonFiniteReachesTheMean) {  // I10
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Ranks ranks = RandomRanks(6, 10, 12);
    ranks[4][3] = bad;
    const Vector mean = MeanOverNodes(ranks, {3, 3});
    for (int i = 0; i < 10; ++i) EXPECT_EQ(IsFinite(mean[i]), i != 3);
  }
}

TEST(ReduceTest, MissingSubtreeIsLoud) {
  const Vector part(4, 1.0f);
  const RankRange half[] = {{0, 2}};
  const float* parts[] = {part.data()};
  Vector out(4);
  FinishMean(half, parts, 4, 4, out.data());
  for (const float x : out) EXPECT_TRUE(std::isnan(x));
}

// Lanes and their tree, written out: bit for bit.
TEST(ReduceTest, NormFollowsTheLanes) {
  const Vector x = RandomRanks(1, 2048, 13)[0];
  double lane[8] = {};
  for (int row = 0; row < 256; ++row) {
    for (int j = 0; j < 8; ++j) {
      const double wide = x[row * 8 + j];
      lane[j] += wide * wide;
    }
  }
  const double expected = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                          ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  EXPECT_EQ(NormOfCell(x.data(), 2048).norm2, expected);

  double sequential = 0;  // negative control
  for (const float value : x) {
    sequential += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NE(sequential, expected);
  EXPECT_NEAR(sequential, expected, 1e-10 * expected);
}

TEST(ReduceTest, NormOfSpecialCells) {
  EXPECT_EQ(NormOfCell(nullptr, 0).norm2, 0);
  EXPECT_TRUE(NormOfCell(nullptr, 0).finite);
  const Vector large(7, 1e30f);
  EXPECT_NEAR(NormOfCell(large.data(), 7).norm2, 7e60, 1e54);
  EXPECT_TRUE(NormOfCell(large.data(), 7).finite);
  const Vector subnormal(7, 0x1p-149f);
  EXPECT_EQ(NormOfCell(subnormal.data(), 7).norm2, 7 * 0x1p-298);
  const Vector largest(2048, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(NormOfCell(largest.data(), 2048).norm2));
}

// I10: found at any place, and no NaN enters the accumulator.
TEST(ReduceTest, NormSeesNonFiniteAnywhere) {
  for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    for (const int place : {0, 1, 6, 7, 8, 2046, 2047}) {
      Vector x(2048, 1.0f);
      x[place] = bad;
      const CellNorm norm = NormOfCell(x.data(), 2048);
      EXPECT_FALSE(norm.finite);
      EXPECT_EQ(norm.norm2, 0);
    }
  }
}

// I9, I15: cells summed by any owners in any order.
TEST(ReduceTest, NormOfCellsIsAssociative) {
  const Vector x = RandomRanks(1, 20 * 2048 + 77, 14)[0];
  ExactSum forward;
  ExactSum odd;
  ExactSum even;
  double plain = 0;
  for (int cell = 0; cell <= 20; ++cell) {
    const int64_t count = cell == 20 ? 77 : 2048;
    const double norm2 = NormOfCell(x.data() + cell * 2048, count).norm2;
    forward.Add(norm2);
    (cell % 2 == 0 ? even : odd).Add(norm2);
  }
  for (const float value : x) plain += static_cast<double>(value) * value;
  odd.Merge(even);
  EXPECT_EQ(odd, forward);
  EXPECT_NEAR(forward.ToDouble(), plain, 1e-10 * plain);
}

}  // namespace
}  // namespace ballast::kernels::reference
