// encode on every instruction set against the reference, byte for byte.
// I3, I10, I11, I13
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/host/fuzz.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

using fuzz::Array;
using fuzz::Random;

constexpr int64_t kElements = 10'000'000;

// Blocks, ranges and rotations by turns.
std::string FuzzEncode(const std::vector<fuzz::Tested>& tables, int bits,
                       Rounding rounding, int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const CodecSpec spec{
        .bits = bits,
        .block = 32 << random->Below(7),
        .range = random->Below(2) ? Range::kSym : Range::kClip16,
        .hadamard = random->Below(2) * 32,
        .rounding = rounding};
    const Array<float> in(fuzz::Floats(count, random), random->Below(4));
    // A reused buffer: what was in it must not show.
    const std::vector<uint8_t> dirt(EncodedBytes(spec, count), 0xa5);
    Array<uint8_t> expected(dirt, 0, true);
    const uint64_t key = random->Next();
    Reference().encode(spec, key, 4096, count, in.data(), expected.data());
    for (const fuzz::Tested& tested : tables) {
      Array<uint8_t> actual(dirt, random->Below(4), true);
      tested.table.encode(spec, key, 4096, count, in.data(), actual.data());
      const std::string wrong = fuzz::Difference(actual, expected);
      if (wrong.empty()) continue;
      return tested.name + ": byte " + wrong + ", n " + std::to_string(count) +
             " block " + std::to_string(spec.block) + " hadamard " +
             std::to_string(spec.hadamard);
    }
    return std::string();
  });
}

TEST(EncodeTest, IsTheReference) {
  for (const int bits : {8, 4, 2}) {
    EXPECT_EQ(
        FuzzEncode(fuzz::HostTables(), bits, Rounding::kNearest, kElements), "")
        << bits;
  }
}

TEST(EncodeTest, StochasticIsTheReference) {
  for (const int bits : {8, 4, 2}) {
    EXPECT_EQ(
        FuzzEncode(fuzz::HostTables(), bits, Rounding::kStochastic, kElements),
        "")
        << bits;
  }
}

TEST(EncodeTest, TakesNoBufferForAnEmptyRun) {
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    tested.table.encode({}, 0, 0, 0, nullptr, nullptr);
  }
}

// Negative control: halves rounded by another rule, as a scaled input does.
TEST(EncodeTest, NoticesAnotherRounding) {
  Kernels wrong = Reference();
  wrong.encode = [](const CodecSpec& spec, uint64_t key, int64_t first,
                    int64_t count, const float* in, uint8_t* out) {
    std::vector<float> scaled(in, in + count);
    for (float& x : scaled) x *= 1.0f + 0x1p-20f;
    Reference().encode(spec, key, first, count, scaled.data(), out);
  };
  EXPECT_NE(FuzzEncode({{"wrong", wrong}}, 8, Rounding::kNearest, 100'000), "");
}

}  // namespace
}  // namespace ballast::kernels
