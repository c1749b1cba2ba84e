#include "kernels/exact_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

ExactSum SumOf(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.Add(value);
  return sum;
}

std::vector<double> RandomValues(int count, int spread, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> mantissa(0.5, 1);
  std::uniform_int_distribution<int> exponent(-spread, spread);
  std::vector<double> values(count);
  for (double& v : values) v = std::ldexp(mantissa(random), exponent(random));
  return values;
}

TEST(ExactSumTest, OneValueComesBack) {
  for (const double value :
       {0.0, -0.0, 1.0, 0.1, 1e-300, 1e300, kSmallest, 3 * kSmallest,
        std::numeric_limits<double>::min(),
        std::nextafter(std::numeric_limits<double>::min(), 0.0), kLargest}) {
    EXPECT_EQ(SumOf({value}).ToDouble(), value) << value;
  }
  for (const double value : RandomValues(1000, 1000, 1)) {
    EXPECT_EQ(SumOf({value}).ToDouble(), value);
  }
}

// I9: the bits do not depend on the order or grouping of additions.
TEST(ExactSumTest, OrderAndGroupingChangeNothing) {
  std::vector<double> values = RandomValues(500, 300, 2);
  const ExactSum expected = SumOf(values);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    const int cut = static_cast<int>(random() % values.size());
    ExactSum left = SumOf({values.begin() + cut, values.end()});
    left.Merge(SumOf({values.begin(), values.begin() + cut}));
    EXPECT_EQ(left, expected);
  }
}

// Negative control: doubles added one by one do depend on the order.
TEST(ExactSumTest, PlainDoublesDoDependOnOrder) {
  std::vector<double> values = RandomValues(500, 30, 4);
  double forward = 0;
  for (const double value : values) forward += value;
  double backward = 0;
  std::reverse(values.begin(), values.end());
  for (const double value : values) backward += value;
  EXPECT_NE(forward, backward);
}

// Against 128-bit integers, whose conversion the compiler rounds correctly.
TEST(ExactSumTest, EqualsIntegerArithmetic) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    const int scale = static_cast<int>(random() % 1500) - 1000;
    unsigned __int128 exact = 0;
    ExactSum sum;
    const int terms = 1 + static_cast<int>(random() % 20);
    for (int i = 0; i < terms; ++i) {
      const uint64_t mantissa = random() >> 11;
      const int shift = static_cast<int>(random() % 60);
      exact += static_cast<unsigned __int128>(mantissa) << shift;
      sum.Add(std::ldexp(static_cast<double>(mantissa), shift + scale));
    }
    EXPECT_EQ(sum.ToDouble(), std::ldexp(static_cast<double>(exact), scale));
  }
}

TEST(ExactSumTest, RoundsTiesToEvenAndSeesStickyBits) {
  const double one = 1;
  const double half_ulp = 0x1p-53;
  EXPECT_EQ(SumOf({one, half_ulp}).ToDouble(), 1.0);
  EXPECT_EQ(SumOf({one, half_ulp, kSmallest}).ToDouble(), 1 + 0x1p-52);
  EXPECT_EQ(SumOf({1 + 0x1p-52, half_ulp}).ToDouble(), 1 + 0x1p-51);
  EXPECT_EQ(SumOf({2 - 0x1p-52, half_ulp}).ToDouble(), 2.0);  // carries
}

TEST(ExactSumTest, HugeSumsAreInfiniteButExactUntilRead) {
  const ExactSum sum = SumOf({kLargest, kLargest});
  EXPECT_EQ(sum.ToDouble(), kInfinity);
  EXPECT_NE(sum, SumOf({kLargest, kLargest, kSmallest}));
  EXPECT_EQ(SumOf({kLargest, 0x1p969}).ToDouble(), kLargest);   // below half
  EXPECT_EQ(SumOf({kLargest, 0x1p970}).ToDouble(), kInfinity);  // half: even
}

TEST(ExactSumTest, InvalidInputSaturatesForGood) {  // I10
  for (const double value : {-1.0, kInfinity, -kInfinity,
                             std::numeric_limits<double>::quiet_NaN()}) {
    ExactSum sum = SumOf({1, value});
    EXPECT_EQ(sum.ToDouble(), kInfinity);
    sum.Add(1);
    sum.Merge(SumOf({5}));
    EXPECT_EQ(sum.ToDouble(), kInfinity);
    EXPECT_EQ(sum, SumOf({value}));
  }
}

TEST(ExactSumTest, LimbsRoundTrip) {
  const ExactSum sum = SumOf(RandomValues(50, 900, 6));
  ExactSum copy;
  ASSERT_TRUE(ExactSum::FromLimbs(sum.limbs(), &copy));
  EXPECT_EQ(copy, sum);
  EXPECT_EQ(copy.ToDouble(), sum.ToDouble());
}

// I27: limbs of a peer may hold anything.
TEST(ExactSumTest, HostileLimbsNeitherWrapNorCrash) {
  std::vector<uint64_t> limbs(ExactSum::kLimbs, ~uint64_t{0});
  ExactSum sum;
  ASSERT_TRUE(ExactSum::FromLimbs(limbs, &sum));
  sum.Merge(SumOf({1}));
  sum.Merge(sum);
  EXPECT_EQ(sum.ToDouble(), kInfinity);
  limbs.assign(ExactSum::kLimbs, 0);
  limbs.back() = uint64_t{1} << 63;
  ASSERT_TRUE(ExactSum::FromLimbs(limbs, &sum));
  EXPECT_EQ(sum.ToDouble(), kInfinity);
  sum.Merge(sum);  // 2^63 + 2^63 in the last limb
  EXPECT_EQ(sum.ToDouble(), kInfinity);

  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    for (uint64_t& limb : limbs) limb = random() & random();
    ASSERT_TRUE(ExactSum::FromLimbs(limbs, &sum));
    EXPECT_GE(sum.ToDouble(), 0);
  }
}

TEST(ExactSumTest, RefusesAWrongNumberOfLimbs) {
  ExactSum sum = SumOf({3});
  for (const size_t size : {0, 33, 35}) {
    EXPECT_FALSE(ExactSum::FromLimbs(std::vector<uint64_t>(size), &sum));
  }
  EXPECT_EQ(sum.ToDouble(), 3);
}

}  // namespace
}  // namespace ballast::kernels
