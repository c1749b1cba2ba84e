#include "kernels/codec.h"

#include "gtest/gtest.h"

namespace ballast::kernels {
namespace {

CodecSpec Spec(int bits, int block) {
  CodecSpec spec;
  spec.bits = bits;
  spec.block = block;
  return spec;
}

// The tables of FORMAT.md, section 2.
TEST(CodecTest, SizesAreThoseOfTheFormat) {
  const int64_t counts[] = {0, 1, 7, 2047, 2048, 2049};
  struct {
    CodecSpec spec;
    int64_t bytes[6];
  } const rows[] = {{Spec(8, 256), {0, 32, 32, 2080, 2080, 2112}},
                    {Spec(4, 128), {0, 32, 32, 1088, 1088, 1120}},
                    {Spec(2, 2048), {0, 32, 32, 528, 528, 544}}};
  for (const auto& row : rows) {
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(EncodedBytes(row.spec, counts[i]), row.bytes[i])
          << row.spec.bits << " bits, " << counts[i];
    }
  }
}

// P1: the bits per element that DESIGN 7.4 promises.
TEST(CodecTest, BitsPerElementOfLongRuns) {
  const int64_t n = int64_t{2048} * 1000;
  EXPECT_NEAR(8.0 * EncodedBytes(Spec(8, 256), n) / n, 8.125, 1e-9);
  EXPECT_NEAR(8.0 * EncodedBytes(Spec(4, 128), n) / n, 4.25, 1e-9);
  EXPECT_NEAR(8.0 * EncodedBytes(Spec(4, 2048), n) / n, 4.015625, 1e-9);
}

// I4: 64-bit sizes.
TEST(CodecTest, SizesBeyondFourGibibytes) {
  const int64_t n = int64_t{1} << 40;
  EXPECT_EQ(EncodedBytes(Spec(8, 256), n), n + n / 64);
}

TEST(CodecTest, WireNameOfTheExample) {
  CodecSpec spec;
  spec.hadamard = 32;
  EXPECT_EQ(PackSpec(spec),
            0x0001012001070401u);  // bytes 01 04 07 01 20 01 01 00
}

TEST(CodecTest, WireNameRoundTrips) {
  int valid = 0;
  for (const int bits : {8, 4, 2}) {
    for (int block = 32; block <= 2048; block *= 2) {
      for (const Range range : {Range::kSym, Range::kClip16}) {
        for (const int hadamard : {0, 32}) {
          for (const Rounding r : {Rounding::kNearest, Rounding::kStochastic}) {
            const CodecSpec spec{bits, block, range, hadamard, r};
            ASSERT_TRUE(IsValid(spec));
            CodecSpec read;
            ASSERT_TRUE(UnpackSpec(PackSpec(spec), &read));
            EXPECT_EQ(read, spec);
            ++valid;
          }
        }
      }
    }
  }
  EXPECT_EQ(valid, 3 * 7 * 2 * 2 * 2);
}

// I27: any byte that is not one of version 1 is refused.
TEST(CodecTest, RefusesEveryOtherWireName) {
  const CodecSpec spec;
  const uint64_t good = PackSpec(spec);
  for (int byte = 0; byte < 8; ++byte) {
    for (uint64_t value = 0; value < 256; ++value) {
      const uint64_t mask = uint64_t{0xff} << (8 * byte);
      const uint64_t wire = (good & ~mask) | (value << (8 * byte));
      CodecSpec read = Spec(2, 64);
      if (UnpackSpec(wire, &read)) {
        EXPECT_TRUE(IsValid(read));
        EXPECT_EQ(PackSpec(read), wire);
        EXPECT_TRUE(wire == good || (byte != 0 && byte < 6))
            << byte;  // version, order, reserved
      } else {
        EXPECT_EQ(read, Spec(2, 64));
      }
    }
  }
}

TEST(CodecTest, RefusesInvalidSpecs) {
  EXPECT_FALSE(IsValid(Spec(3, 128)));
  EXPECT_FALSE(IsValid(Spec(4, 16)));
  EXPECT_FALSE(IsValid(Spec(4, 96)));
  EXPECT_FALSE(IsValid(Spec(4, 4096)));
  EXPECT_FALSE(IsValid(Spec(4, -128)));
  CodecSpec spec;
  spec.hadamard = 16;
  EXPECT_FALSE(IsValid(spec));
}

}  // namespace
}  // namespace ballast::kernels
