#include "kernels/float_formats.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

struct Format {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  double overflow;   // magnitudes from here on become infinite
};

constexpr Format kBf16{7, -126, 0x1.ffp127};
constexpr Format kFp16{10, -14, 65520};

// The nearest value of the format, in double: an independent computation.
double Nearest(const Format& format, double x) {
  const double magnitude = std::fabs(x);
  if (magnitude >= format.overflow) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  int exponent = magnitude == 0 ? format.min_exponent : std::ilogb(magnitude);
  exponent = std::max(exponent, format.min_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  return std::copysign(std::nearbyint(magnitude / unit) * unit, x);
}

// Every 16-bit pattern widened, the midpoints above, and their neighbours;
// random bits.
std::vector<float> Interesting(float (*widen)(uint16_t)) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = widen(static_cast<uint16_t>(bits));
    if (!IsFinite(value)) continue;
    const float next = widen(static_cast<uint16_t>(bits + 1));
    const float middle = IsFinite(next) ? (value / 2 + next / 2) : value;
    for (const float x : {value, middle}) {
      values.push_back(x);
      values.push_back(std::nextafterf(x, 1e38f));
      values.push_back(std::nextafterf(x, -1e38f));
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = FromBits(random());
    if (IsFinite(x)) values.push_back(x);
  }
  for (const float x : {65519.996f, 65520.0f, 65536.0f, 0x1p-24f, 0x1p-25f,
                        0x1.000002p-25f, 0x1p-149f, 3.4028235e38f, 1e30f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  return values;
}

bool SameBits(float a, float b) { return Bits(a) == Bits(b); }

TEST(FloatFormatsTest, EveryBFloat16RoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = BFloat16ToFloat(static_cast<uint16_t>(bits));
    const uint32_t quiet = std::isnan(value) ? 0x40u : 0u;
    EXPECT_EQ(BFloat16FromFloat(value), bits | quiet);
  }
}

TEST(FloatFormatsTest, EveryFloat16RoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    const uint32_t quiet = std::isnan(value) ? 0x200u : 0u;
    EXPECT_EQ(Float16FromFloat(value), bits | quiet);
  }
}

TEST(FloatFormatsTest, EveryFloat16WidensToItsValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Float16ToFloat(static_cast<uint16_t>(bits));
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      continue;
    }
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(std::fabs(value), magnitude);
    EXPECT_EQ(std::signbit(value), bits >> 15 != 0);
  }
}

TEST(FloatFormatsTest, BFloat16IsTheNearest) {
  for (const float x : Interesting(BFloat16ToFloat)) {
    EXPECT_TRUE(SameBits(BFloat16ToFloat(BFloat16FromFloat(x)),
                         static_cast<float>(Nearest(kBf16, x))))
        << std::hexfloat << x;
  }
}

TEST(FloatFormatsTest, Float16IsTheNearest) {
  for (const float x : Interesting(Float16ToFloat)) {
    EXPECT_TRUE(SameBits(Float16ToFloat(Float16FromFloat(x)),
                         static_cast<float>(Nearest(kFp16, x))))
        << std::hexfloat << x;
  }
}

// Negative control: truncation, as some libraries do it, is caught.
TEST(FloatFormatsTest, TruncationIsNotTheNearest) {
  int different = 0;
  for (const float x : Interesting(BFloat16ToFloat)) {
    const auto truncated = static_cast<uint16_t>(Bits(x) >> 16);
    if (BFloat16ToFloat(truncated) != Nearest(kBf16, x)) ++different;
  }
  EXPECT_GT(different, 1000);
}

// The table of FORMAT.md, section 6.
TEST(FloatFormatsTest, ExamplesOfTheFormat) {
  struct {
    uint32_t fp32;
    uint16_t bf16, fp16;
  } const rows[] = {{0x3f808000u, 0x3f80, 0x3c04},
                    {0x7f7fffffu, 0x7f80, 0x7c00},
                    {0x477fefffu, 0x4780, 0x7bff},
                    {0x7f800001u, 0x7fc0, 0x7e00}};
  for (const auto& row : rows) {
    EXPECT_EQ(BFloat16FromFloat(FromBits(row.fp32)), row.bf16);
    EXPECT_EQ(Float16FromFloat(FromBits(row.fp32)), row.fp16);
  }
}

// I10: a NaN with only low mantissa bits stays one.
TEST(FloatFormatsTest, NaNStaysNaNWithItsSign) {
  for (const uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffc00000u, 0x7f80ffffu}) {
    const float bf16 = BFloat16ToFloat(BFloat16FromFloat(FromBits(bits)));
    const float fp16 = Float16ToFloat(Float16FromFloat(FromBits(bits)));
    EXPECT_TRUE(std::isnan(bf16) && std::isnan(fp16)) << bits;
    EXPECT_EQ(std::signbit(bf16), bits >> 31 != 0);
    EXPECT_EQ(std::signbit(fp16), bits >> 31 != 0);
  }
}

}  // namespace
}  // namespace ballast::kernels
