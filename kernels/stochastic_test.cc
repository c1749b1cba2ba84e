#include "kernels/stochastic.h"

#include <cmath>

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

constexpr uint64_t kKey = StochasticKey(1, JobKey("gpt2"), 2, 3, 0);

// The table of FORMAT.md, section 5.
TEST(StochasticTest, ExamplesOfTheFormat) {
  EXPECT_EQ(JobKey("gpt2"), 0x0d02a9724dfa3630u);
  EXPECT_EQ(kKey, 0x3381723463e428abu);
  EXPECT_EQ(CellKey(kKey, 0), 0x31c4f5226d92337fu);
  EXPECT_EQ(CellKey(kKey, 1), 0x829d3c53fc18757au);
  EXPECT_EQ(StochasticBits(CellKey(kKey, 0), 0), 0xd00c464du);
  EXPECT_EQ(StochasticBits(CellKey(kKey, 0), 1), 0x39f494f0u);
  EXPECT_EQ(StochasticBits(CellKey(kKey, 0), 2047), 0x3cede71cu);
}

TEST(StochasticTest, EveryPartOfTheKeyMatters) {
  EXPECT_NE(StochasticKey(2, JobKey("gpt2"), 2, 3, 0), kKey);
  EXPECT_NE(StochasticKey(1, JobKey("gpt3"), 2, 3, 0), kKey);
  EXPECT_NE(StochasticKey(1, JobKey("gpt2"), 3, 2, 0), kKey);
  EXPECT_NE(StochasticKey(1, JobKey("gpt2"), 2, 4, 0), kKey);
  EXPECT_NE(StochasticKey(1, JobKey("gpt2"), 2, 3, 1), kKey);
}

// I11: uniform. 64 bins of about 20000 numbers; the statistic of 63 degrees
// of freedom stays below its 1 - 1e-6 quantile (about 130).
TEST(StochasticTest, BitsAreUniform) {
  int bins[64] = {};
  constexpr int kCells = 640;
  for (int cell = 0; cell < kCells; ++cell) {
    for (int i = 0; i < 2048; ++i) {
      const float u = StochasticUniform(CellKey(kKey, cell), i);
      ASSERT_TRUE(u >= 0 && u < 1);
      ++bins[static_cast<int>(u * 64)];
    }
  }
  const double expected = kCells * 2048 / 64.0;
  double statistic = 0;
  for (const int bin : bins) {
    statistic += (bin - expected) * (bin - expected) / expected;
  }
  EXPECT_LT(statistic, 130);
}

// Neighbours, equal positions of neighbouring cells, steps and hops: the
// correlation of n pairs is within five times 1/sqrt(n).
TEST(StochasticTest, NeighboursAreUncorrelated) {
  const auto at = [](int step, int hop, int cell, int i) {
    const uint64_t key = StochasticKey(7, JobKey("j"), 0, step, hop);
    return StochasticUniform(CellKey(key, cell), i) - 0.5;
  };
  double element = 0, cell_sum = 0, step_sum = 0, hop_sum = 0;
  constexpr int kCells = 100;
  for (int cell = 0; cell < kCells; ++cell) {
    for (int i = 0; i < 2048; ++i) {
      const double u = at(1, 0, cell, i);
      element += u * at(1, 0, cell, i + 1);
      cell_sum += u * at(1, 0, cell + 1, i);
      step_sum += u * at(2, 0, cell, i);
      hop_sum += u * at(1, 1, cell, i);
    }
  }
  const double n = kCells * 2048;
  const double bound = 5 / std::sqrt(n);
  for (const double sum : {element, cell_sum, step_sum, hop_sum}) {
    EXPECT_LT(std::fabs(sum / n * 12), bound);
  }
}

}  // namespace
}  // namespace ballast::kernels
