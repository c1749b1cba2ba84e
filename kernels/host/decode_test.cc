// decode and decode_add on every instruction set against the reference: runs
// that were encoded, and any bytes. // I4, I25, I27
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

std::vector<uint8_t> Run(const CodecSpec& spec, int64_t count, Random* random) {
  std::vector<uint8_t> run(EncodedBytes(spec, count));
  if (random->Below(2) != 0) {
    const std::vector<float> in = fuzz::Floats(count, random);
    Reference().encode(spec, 0, 0, count, in.data(), run.data());
  } else {
    for (uint8_t& byte : run) byte = static_cast<uint8_t>(random->Next() >> 56);
  }
  return run;
}

std::string FuzzDecode(const std::vector<fuzz::Tested>& tables, int bits,
                       int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const CodecSpec spec{.bits = bits,
                         .block = 32 << random->Below(7),
                         .hadamard = random->Below(2) * 32};
    const Array<uint8_t> run(Run(spec, count, random), random->Below(4));
    const bool adds = random->Below(2) != 0;
    Array<float> expected(fuzz::Floats(count, random), random->Below(4), true);
    const Array<float> before = expected;
    const auto entry = adds ? &Kernels::decode_add : &Kernels::decode;
    (Reference().*entry)(spec, count, run.data(), expected.data());
    for (const fuzz::Tested& tested : tables) {
      Array<float> actual = before;
      (tested.table.*entry)(spec, count, run.data(), actual.data());
      const std::string wrong = fuzz::Difference(actual, expected);
      if (wrong.empty()) continue;
      return tested.name + ": " + wrong + " block " +
             std::to_string(spec.block) + " hadamard " +
             std::to_string(spec.hadamard) + (adds ? " add" : "");
    }
    return std::string();
  });
}

TEST(DecodeTest, IsTheReference) {
  for (const int bits : {8, 4, 2}) {
    // Half of the runs are decoded, half are added.
    EXPECT_EQ(FuzzDecode(fuzz::HostTables(), bits, 2 * kElements), "") << bits;
  }
}

TEST(DecodeTest, TakesNoBufferForAnEmptyRun) {
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    tested.table.decode({}, 0, nullptr, nullptr);
    tested.table.decode_add({}, 0, nullptr, nullptr);
  }
}

// Negative control: nibbles swapped.
TEST(DecodeTest, NoticesTheOtherNibbleOrder) {
  Kernels wrong = Reference();
  wrong.decode = [](const CodecSpec& spec, int64_t count, const uint8_t* in,
                    float* out) {
    std::vector<uint8_t> run(in, in + EncodedBytes(spec, count));
    for (size_t i = CodesOffset(spec, count); i < run.size(); ++i) {
      run[i] = static_cast<uint8_t>(run[i] << 4 | run[i] >> 4);
    }
    Reference().decode(spec, count, run.data(), out);
  };
  EXPECT_NE(FuzzDecode({{"wrong", wrong}}, 4, 100'000), "");
}

}  // namespace
}  // namespace ballast::kernels
