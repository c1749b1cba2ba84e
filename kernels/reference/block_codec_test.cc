#include "kernels/reference/block_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/float_formats.h"
#include "kernels/stochastic.h"

namespace ballast::kernels::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kKey = StochasticKey(1, JobKey("gpt2"), 2, 3, 0);
// FORMAT.md, section 3: what fp32 rounding adds to the error bounds, in steps.
constexpr double kExcess = 0x1p-13;

using Vector = std::vector<float>;
using Bytes = std::vector<uint8_t>;

Bytes EncodeAt(const CodecSpec& spec, int64_t first, const Vector& x) {
  Bytes out(EncodedBytes(spec, x.size()), 0xa5);
  Encode(spec, kKey, first, x.size(), x.data(), out.data());
  return out;
}

Vector DecodeAll(const CodecSpec& spec, int64_t count, const Bytes& in) {
  Vector out(count);
  Decode(spec, count, in.data(), out.data());
  return out;
}

Vector RoundTrip(const CodecSpec& spec, const Vector& x) {
  return DecodeAll(spec, x.size(), EncodeAt(spec, 0, x));
}

float ScaleAt(const Bytes& encoded, int block) {
  float scale;
  std::memcpy(&scale, encoded.data() + block * 4, 4);
  return scale;
}

Vector Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Vector x(count);
  for (float& value : x) value = normal(random);
  return x;
}

double RelativeError(const Vector& x, const Vector& y) {
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    norm += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / norm);
}

std::vector<CodecSpec> AllSpecs() {
  std::vector<CodecSpec> specs;
  for (const int bits : {8, 4, 2}) {
    for (const int block : {32, 128, 2048}) {
      for (const Range range : {Range::kSym, Range::kClip16}) {
        for (const int hadamard : {0, 32}) {
          for (const Rounding r : {Rounding::kNearest, Rounding::kStochastic}) {
            specs.push_back({bits, block, range, hadamard, r});
          }
        }
      }
    }
  }
  return specs;
}

// The example of FORMAT.md, section 3.
TEST(BlockCodecTest, ExampleOfTheFormat) {
  const Vector x = {1, -1, .5, -.5, .3, 0, -.0625, .9375};
  CodecSpec spec;
  spec.range = Range::kClip16;
  Bytes encoded = EncodeAt(spec, 0, x);
  EXPECT_EQ(Bytes(encoded.begin() + 16, encoded.begin() + 20),
            Bytes({0x87, 0xc4, 0x02, 0x70}));
  EXPECT_EQ(ScaleAt(encoded, 0), 0.125f);
  EXPECT_EQ(DecodeAll(spec, 8, encoded),
            Vector({.875, -1, .5, -.5, .25, 0, 0, .875}));

  spec.range = Range::kSym;
  encoded = EncodeAt(spec, 0, x);
  EXPECT_EQ(Bytes(encoded.begin() + 16, encoded.begin() + 20),
            Bytes({0x97, 0xc4, 0x02, 0x70}));
  EXPECT_EQ(ScaleAt(encoded, 0), 1.0f / 7.0f);
}

TEST(BlockCodecTest, TwoBitsFirstElementLowest) {
  CodecSpec spec;
  spec.bits = 2;
  const Bytes encoded = EncodeAt(spec, 0, {1, -1, 0, 1, -1});
  EXPECT_EQ(encoded[16], 0b01'00'11'01);
  EXPECT_EQ(encoded[17], 0b11);
}

// I13, I4: gaps are zero, sizes exact, nothing behind the end is touched.
TEST(BlockCodecTest, EveryCountRoundTripsWithinItsBytes) {
  for (const CodecSpec& spec : AllSpecs()) {
    for (const int64_t count : {0, 1, 7, 31, 33, 2047, 2048, 2049, 6000}) {
      const Vector x = Normal(count, 1);
      const int64_t bytes = EncodedBytes(spec, count);
      Bytes encoded(bytes + 1, 0xa5);
      Encode(spec, kKey, 0, count, x.data(), encoded.data());
      ASSERT_EQ(encoded[bytes], 0xa5);
      for (int64_t i = NumBlocks(spec, count) * 4; i < CodesOffset(spec, count);
           ++i) {
        ASSERT_EQ(encoded[i], 0);
      }
      const int64_t per_byte = 8 / spec.bits;
      for (int64_t i =
               CodesOffset(spec, count) + (count + per_byte - 1) / per_byte;
           i < bytes; ++i) {
        ASSERT_EQ(encoded[i], 0);
      }
      Vector out(count + 1, -7.0f);
      Decode(spec, count, encoded.data(), out.data());
      ASSERT_EQ(out[count], -7.0f);
      out.pop_back();
      if (count > 0 && spec.bits == 8 && spec.block <= 128) {
        ASSERT_LT(RelativeError(x, out), 0.05);
      }
    }
  }
}

// I11: half a step for every element, ±absmax included; a whole one when
// stochastic; clip16 only below its positive extreme.
TEST(BlockCodecTest, ErrorIsBounded) {
  std::mt19937 random(2);
  for (CodecSpec spec : AllSpecs()) {
    if (spec.hadamard != 0) continue;
    for (int round = 0; round < 10; ++round) {
      const int exponent = static_cast<int>(random() % 240) - 119;
      Vector x = Normal(2048, random());
      for (float& value : x) value = std::ldexp(value, exponent);
      x[5] *= 20;  // outliers of both signs
      x[2000] *= -20;
      const Bytes encoded = EncodeAt(spec, 0, x);
      const Vector y = DecodeAll(spec, 2048, encoded);
      const double highest =
          spec.range == Range::kSym ? 1e9 : (1 << (spec.bits - 1)) - 1;
      for (int i = 0; i < 2048; ++i) {
        const double step = ScaleAt(encoded, i / spec.block);
        const double bound =
            (spec.rounding == Rounding::kNearest ? 0.5 : 1) + kExcess;
        if (x[i] / step > highest) continue;
        ASSERT_LE(std::fabs(static_cast<double>(x[i]) - y[i]), bound * step)
            << spec.bits << " bits, element " << i;
      }
    }
  }
}

// Negative control: the bound fails for clip16's positive extreme.
TEST(BlockCodecTest, ClipCutsThePositiveExtremeOnly) {
  CodecSpec spec;
  spec.range = Range::kClip16;
  EXPECT_EQ(RoundTrip(spec, {1, 0.5})[0], 0.875f);
  EXPECT_EQ(RoundTrip(spec, {-1, 0.5})[0], -1.0f);
  spec.bits = 8;
  EXPECT_EQ(RoundTrip(spec, {1, 0.5})[0], 127.0f / 128);
}

// Facts of the literature, +-5 %.
TEST(BlockCodecTest, GaussianErrorsArePublishedOnes) {
  struct {
    int block;
    double int8_clip, int4_clip, int4_sym;
  } const rows[] = {{64, .0060, .0976, .1056},
                    {128, .0065, .105, .117},
                    {256, .0069, .113, .127},
                    {512, .0073, .116, .132},
                    {2048, .0081, .129, .147}};
  const Vector x = Normal(2048 * 200, 3);
  for (const auto& row : rows) {
    const auto error = [&](int bits, Range range) {
      const CodecSpec spec{bits, row.block, range, 0, Rounding::kNearest};
      // The published figures are means over blocks.
      const Vector y = RoundTrip(spec, x);
      double sum = 0;
      int blocks = 0;
      for (size_t i = 0; i < x.size(); i += row.block, ++blocks) {
        sum += RelativeError({&x[i], &x[i] + row.block},
                             {&y[i], &y[i] + row.block});
      }
      return sum / blocks;
    };
    EXPECT_NEAR(error(8, Range::kClip16), row.int8_clip, .05 * row.int8_clip);
    EXPECT_NEAR(error(4, Range::kClip16), row.int4_clip, .05 * row.int4_clip);
    EXPECT_NEAR(error(4, Range::kSym), row.int4_sym, .05 * row.int4_sym);
  }
}

// I11.
TEST(BlockCodecTest, ZeroAndTinyBlocksAreZero) {
  for (const CodecSpec& spec : AllSpecs()) {
    // A constant group of 32 rotates to 32 times its value.
    const float limit = spec.hadamard != 0 ? 0x1p-125f : 0x1p-120f;
    for (const float x : {0.0f, -0.0f, 0x1p-149f, std::nextafterf(limit, 0)}) {
      const Bytes encoded = EncodeAt(spec, 0, Vector(100, x));
      for (int b = 0; b < NumBlocks(spec, 100); ++b) {
        EXPECT_EQ(ScaleAt(encoded, b), 1.0f);
      }
      for (const float y : DecodeAll(spec, 100, encoded)) {
        EXPECT_EQ(Bits(y), 0u);
      }
    }
  }
}

TEST(BlockCodecTest, SmallestEncodedBlockIsRight) {
  CodecSpec spec;
  for (const int bits : {8, 4, 2}) {
    spec.bits = bits;
    EXPECT_NEAR(RoundTrip(spec, {0x1p-120f, 0})[0], 0x1p-120, 0x1p-134);
  }
}

TEST(BlockCodecTest, ConstantAndSingleOutlierBlocks) {
  CodecSpec spec;
  for (const float c : {1.0f, -3.5f, 1e30f, 3.4e38f}) {
    for (const float y : RoundTrip(spec, Vector(200, c))) {
      EXPECT_FLOAT_EQ(y, c);
    }
    Vector outlier(128, 0.0f);
    outlier[77] = c;
    const Vector y = RoundTrip(spec, outlier);
    for (int i = 0; i < 128; ++i) EXPECT_FLOAT_EQ(y[i], outlier[i]);
  }
}

// I10: never encoded as a number; only its own block is lost.
TEST(BlockCodecTest, NonFiniteBlocksPropagate) {
  for (const CodecSpec& spec : AllSpecs()) {
    for (const float bad :
         {kNaN, -kNaN, kInfinity, -kInfinity, FromBits(0x7f800001u)}) {
      for (const int place : {0, 127, 4000}) {
        Vector x = Normal(4096, 4);
        x[place] = bad;
        const Bytes encoded = EncodeAt(spec, 0, x);
        ASSERT_EQ(Bits(ScaleAt(encoded, place / spec.block)), 0x7fc00000u);
        const Vector y = DecodeAll(spec, 4096, encoded);
        for (int i = 0; i < 4096; ++i) {
          ASSERT_EQ(std::isnan(y[i]), i / spec.block == place / spec.block);
        }
      }
    }
  }
}

TEST(BlockCodecTest, OverflowInTheRotationPropagates) {  // I10
  CodecSpec spec;
  spec.hadamard = 32;
  for (const float y : RoundTrip(spec, Vector(64, 3e38f))) {
    EXPECT_TRUE(std::isnan(y));
  }
  EXPECT_FLOAT_EQ(RoundTrip(spec, Vector(64, 1e37f))[5], 1e37f);
}

// The matrix written out: element (i, j) is + if popcount(i & j) is even.
TEST(BlockCodecTest, HadamardIsTheMatrix) {
  const Vector x = Normal(64, 5);
  CodecSpec spec{8, 32, Range::kSym, 32, Rounding::kNearest};
  const Bytes encoded = EncodeAt(spec, 0, x);
  spec.hadamard = 0;  // reads the rotated values themselves
  const Vector rotated = DecodeAll(spec, 64, encoded);
  for (int i = 0; i < 64; ++i) {
    double exact = 0;
    for (int j = 0; j < 32; ++j) {
      const bool odd = __builtin_popcount((i % 32) & j) % 2 != 0;
      exact += odd ? -x[i / 32 * 32 + j] : x[i / 32 * 32 + j];
    }
    EXPECT_NEAR(rotated[i], exact, 0.51 * ScaleAt(encoded, i / 32));
  }
}

TEST(BlockCodecTest, HadamardSpreadsAnOutlier) {
  Vector x = Normal(2048, 6);
  for (int i = 0; i < 2048; i += 128) x[i] = 30;
  CodecSpec spec;
  const double plain = RelativeError(x, RoundTrip(spec, x));
  spec.hadamard = 32;
  EXPECT_LT(RelativeError(x, RoundTrip(spec, x)), 0.8 * plain);
}

// The example of FORMAT.md, section 4: a short block has smaller groups.
TEST(BlockCodecTest, ShortBlocksHaveTheGroupsThatDivideThem) {
  Vector x(128, 0.0f);
  for (int i = 1; i <= 6; ++i) x.push_back(static_cast<float>(i));
  CodecSpec spec{8, 128, Range::kSym, 32, Rounding::kNearest};
  const Bytes encoded = EncodeAt(spec, 0, x);
  spec.hadamard = 0;  // reads the rotated values themselves
  const Vector rotated = DecodeAll(spec, 134, encoded);
  const float expected[] = {3, -1, 7, -1, 11, -1};
  for (int i = 0; i < 6; ++i) {
    EXPECT_NEAR(rotated[128 + i], expected[i], 0.51 * 11 / 127);
  }
  for (const auto& [count, group] : {std::pair{1, 1},
                                     {7, 1},
                                     {54, 2},
                                     {100, 4},
                                     {24, 8},
                                     {48, 16},
                                     {32, 32},
                                     {96, 32},
                                     {128, 32},
                                     {2048, 32}}) {
    EXPECT_EQ(HadamardGroup(count), group) << count;
  }
}

// I6: whatever the length.
TEST(BlockCodecTest, HadamardKeepsConstantsOfEveryLength) {
  for (const CodecSpec& spec :
       {CodecSpec{4, 128, Range::kSym, 32, Rounding::kNearest},
        CodecSpec{8, 256, Range::kSym, 32, Rounding::kNearest},
        CodecSpec{2, 2048, Range::kSym, 32, Rounding::kStochastic}}) {
    for (const float c : {1.0f, -3.7e-20f}) {
      for (int64_t count = 1; count <= 2049; ++count) {
        for (const float y : RoundTrip(spec, Vector(count, c))) {
          ASSERT_NEAR(y / c, 1, 2e-6) << count;
        }
      }
    }
  }
}

// Negative control: groups of 32 and single elements brought to about their
// size, in one block.
TEST(BlockCodecTest, GroupsOfTwoSizesLoseConstants) {
  Vector rotated(32 + 13, 0.0f);
  rotated[0] = 32;
  std::fill(rotated.begin() + 32, rotated.end(), 4.0f);
  const Vector y = RoundTrip({}, rotated);
  EXPECT_FLOAT_EQ(y[0], 32);
  EXPECT_GT(std::fabs(y[40] / 4 - 1), 0.1);
}

// I11: the mean over a group of errors that are each at most half a step.
TEST(BlockCodecTest, HadamardErrorIsBounded) {
  std::mt19937 random(14);
  for (CodecSpec spec : AllSpecs()) {
    if (spec.hadamard == 0 || spec.range != Range::kSym) continue;
    const double bound =
        (spec.rounding == Rounding::kNearest ? 0.5 : 1) + kExcess;
    for (const int count : {1, 31, 54, 100, 152, 176, 2041, 2048}) {
      Vector x = Normal(count, random());
      x[count / 2] *= 20;
      const Bytes encoded = EncodeAt(spec, 0, x);
      const Vector y = DecodeAll(spec, count, encoded);
      for (int i = 0; i < count; ++i) {
        const double step = ScaleAt(encoded, i / spec.block);
        ASSERT_LE(std::fabs(static_cast<double>(x[i]) - y[i]), bound * step)
            << spec.bits << " bits, element " << i << " of " << count;
      }
    }
  }
}

// The last, short block is as good as it is without rotation, and as a whole
// one.
TEST(BlockCodecTest, HadamardTailsAreAsGoodAsWholeBlocks) {
  CodecSpec plain;
  CodecSpec rotated;
  rotated.hadamard = 32;
  const Vector whole = Normal(128 * 400, 7);
  const double whole_error = RelativeError(whole, RoundTrip(rotated, whole));
  for (const int tail : {13, 31, 54, 100, 120, 127}) {
    Vector x, y, unrotated;
    for (int round = 0; round < 400; ++round) {
      Vector run = Normal(128 + tail, 1000 * tail + round);
      const Vector a = RoundTrip(rotated, run);
      const Vector b = RoundTrip(plain, run);
      x.insert(x.end(), run.begin() + 128, run.end());
      y.insert(y.end(), a.begin() + 128, a.end());
      unrotated.insert(unrotated.end(), b.begin() + 128, b.end());
    }
    EXPECT_LT(RelativeError(x, y), 1.05 * RelativeError(x, unrotated));
    EXPECT_LT(RelativeError(x, y), 1.05 * whole_error);
  }
}

// I9, I11: where a run starts changes no code and no scale.
TEST(BlockCodecTest, RunsOfCellsAreIndependent) {
  const Vector x = Normal(5 * 2048 + 77, 8);
  for (const CodecSpec& spec : AllSpecs()) {
    const Vector whole = RoundTrip(spec, x);
    for (const int cut : {2048, 3 * 2048, 5 * 2048}) {
      const Vector head(x.begin(), x.begin() + cut);
      const Vector tail(x.begin() + cut, x.end());
      Vector parts = DecodeAll(spec, head.size(), EncodeAt(spec, 0, head));
      const Vector rest =
          DecodeAll(spec, tail.size(), EncodeAt(spec, cut, tail));
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole);
    }
  }
}

// I11: the mean over many steps tends to the value; nearest (the negative
// control) keeps its error for ever.
TEST(BlockCodecTest, StochasticRoundingIsUnbiased) {
  const Vector x = Normal(128, 9);
  CodecSpec spec;
  constexpr int kSteps = 4000;
  std::vector<double> sums(128);
  float scale = 0;
  for (int step = 0; step < kSteps; ++step) {
    spec.rounding = Rounding::kStochastic;
    Bytes encoded(EncodedBytes(spec, 128));
    const uint64_t key = StochasticKey(0, JobKey("j"), 0, step, 0);
    Encode(spec, key, 0, 128, x.data(), encoded.data());
    scale = ScaleAt(encoded, 0);
    const Vector y = DecodeAll(spec, 128, encoded);
    for (int i = 0; i < 128; ++i) sums[i] += y[i];
  }
  // The deviation of one draw is at most half a step; five of the mean's.
  const double bound = 5 * 0.5 * scale / std::sqrt(kSteps);
  for (int i = 0; i < 128; ++i) EXPECT_NEAR(sums[i] / kSteps, x[i], bound);

  spec.rounding = Rounding::kNearest;
  const Vector nearest = RoundTrip(spec, x);
  int biased = 0;
  for (int i = 0; i < 128; ++i) biased += std::fabs(nearest[i] - x[i]) > bound;
  EXPECT_GT(biased, 64);
}

TEST(BlockCodecTest, StochasticNeverMovesExactCodes) {
  const Vector x = {7, -7, 3, -2, 0, 1};
  CodecSpec spec;
  spec.rounding = Rounding::kStochastic;
  for (int cell = 0; cell < 100; ++cell) {
    const Bytes encoded = EncodeAt(spec, cell * 2048, x);
    EXPECT_EQ(DecodeAll(spec, 6, encoded), x);
  }
}

TEST(BlockCodecTest, DecodeAddIsDecodeThenAdd) {
  for (const CodecSpec& spec : AllSpecs()) {
    for (const int64_t count : {0, 1, 7, 2047, 2048, 4100}) {
      const Bytes encoded = EncodeAt(spec, 0, Normal(count, 10));
      const Vector decoded = DecodeAll(spec, count, encoded);
      Vector target = Normal(count + 1, 11);
      const Vector before = target;
      DecodeAdd(spec, count, encoded.data(), target.data());
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(Bits(target[i]), Bits(before[i] + decoded[i]));
      }
      ASSERT_EQ(target[count], before[count]);
    }
  }
}

// I27: any bytes decode within bounds.
TEST(BlockCodecTest, AnyBytesDecode) {
  std::mt19937 random(12);
  for (const CodecSpec& spec : AllSpecs()) {
    for (const int64_t count : {1, 33, 2049}) {
      Bytes bytes(EncodedBytes(spec, count));
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      EXPECT_EQ(DecodeAll(spec, count, bytes).size(), count);
    }
  }
}

// I3: the elements behind the run are never read into a scale.
TEST(BlockCodecTest, PaddingIsInert) {
  for (const CodecSpec& spec : AllSpecs()) {
    for (const int64_t count : {1, 7, 33, 2047}) {
      const Vector x = Normal(count, 13);
      const Bytes expected = EncodeAt(spec, 0, x);
      for (const float poison : {kNaN, kInfinity, 1e30f}) {
        Vector padded = x;
        padded.resize(4096, poison);
        Bytes encoded(expected.size(), 0x5a);
        Encode(spec, kKey, 0, count, padded.data(), encoded.data());
        ASSERT_EQ(encoded, expected);
      }
    }
  }
}

// FORMAT.md 3: the example's 1 and its tie at 7.5 round to 8, which is no code.
TEST(BlockCodecTest, WhatTheRangeCutsOffIsCounted) {
  const Vector example = {1, -1, .5, -.5, .3, 0, -.0625, .9375};
  CodecSpec spec{.bits = 4, .block = 128};
  EXPECT_EQ(CountClipped(spec, kKey, 0, 8, example.data()), 0);
  spec.range = Range::kClip16;
  EXPECT_EQ(CountClipped(spec, kKey, 0, 8, example.data()), 2);
  // Every block's largest value is cut if it is positive, and few others are.
  const Vector noise = Normal(5000, 3);
  const Vector back = RoundTrip(spec, noise);
  int64_t expected = 0;
  for (size_t i = 0; i < noise.size(); ++i) {
    const float scale = ScaleAt(EncodeAt(spec, 0, noise), i / 128);
    if (noise[i] - back[i] >= 0.5f * scale) ++expected;
  }
  EXPECT_GT(expected, 10);
  EXPECT_EQ(CountClipped(spec, kKey, 0, 5000, noise.data()), expected);
  EXPECT_EQ(CountClipped(spec, kKey, 0, 0, nullptr), 0);
}

}  // namespace
}  // namespace ballast::kernels::reference
