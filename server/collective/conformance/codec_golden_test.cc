// Bytes that every row of the codec table must keep, through the registry.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "server/collective/codec.h"
#include "server/collective/codec_registry.h"
#include "server/collective/conformance/codec_cases.h"
#include "server/layout/codec_table.h"
#include "server/layout/exchange_plan.h"

namespace ballast::collective {
namespace {

using kernels::DType;
using layout::CodecId;

constexpr auto kSym = kernels::Range::kSym;
constexpr auto kClip16 = kernels::Range::kClip16;

// The example of kernels/FORMAT.md, 3.
const std::vector<float> kExample = {1, -1, .5, -.5, .3f, 0, -.0625, .9375};
// That of its 4: rotates, in groups of two, to 3, -1, 7, -1, 11, -1.
const std::vector<float> kRotated = {1, 2, 3, 4, 5, 6};

struct Golden {
  layout::CodecChoice choice;
  DType unquantized = DType::kFloat32;
  std::vector<float> values;
  std::string_view scale;       // its four bytes; none where there is none
  std::string_view codes;       // bytes
  double unit;                  // of what follows
  std::vector<double> decoded;  // in units
  int64_t clipped = 0;
};

layout::CodecChoice Choice(CodecId id, int bits, kernels::Range range,
                           int hadamard = 0) {
  return {id, {bits, 64, range, hadamard}};
}

// By hand from FORMAT.md 2 to 4 and 6: D = 2^(b-1), less 1 for sym; scale =
// absmax / D, codes = x · D / absmax to the nearest, ties to even, at most D -
// 1 for clip16, where a rounded D counts as clipped. A pair of rotated values
// (a, b) decodes to (a + b, a - b) / 2.
std::vector<Golden> Goldens() {
  return {
      // 1 = 3f800000, .3 = 3e99999a, .0625 = 3d800000, .9375 = 3f700000
      {{CodecId::kNone, {}},
       DType::kFloat32,
       kExample,
       "",
       "0000803f 000080bf 0000003f 000000bf 9a99993e 00000000 000080bd "
       "0000703f",
       1,
       {1, -1, .5, -.5, .3, 0, -.0625, .9375}},
      // the upper halves; 3e99|999a goes up
      {{CodecId::kNone, {}},
       DType::kBFloat16,
       kExample,
       "",
       "803f 80bf 003f 00bf 9a3e 0000 80bd 703f",
       1,
       {1, -1, .5, -.5, 154 / 512.0, 0, -.0625, .9375}},
      // .3 = 1.2 / 4: exponent 13, mantissa 204.8 -> 205 = 0cd
      {{CodecId::kNone, {}},
       DType::kFloat16,
       kExample,
       "",
       "003c 00bc 0038 00b8 cd34 0000 00ac 803b",
       1,
       {1, -1, .5, -.5, (1 + 205 / 1024.0) / 4, 0, -.0625, .9375}},

      // 127, -127, 63.5, -63.5, 38.1, 0, -7.94, 119.06
      {Choice(CodecId::kInt8, 8, kSym),
       DType::kFloat32,
       kExample,
       "0402013c",
       "7f 81 40 c0 26 00 f8 77",
       1.0 / 127,
       {127, -127, 64, -64, 38, 0, -8, 119}},
      // 128, -128, 64, -64, 38.4, 0, -8, 120
      {Choice(CodecId::kInt8, 8, kClip16),
       DType::kFloat32,
       kExample,
       "0000003c",
       "7f 80 40 c0 26 00 f8 78",
       1.0 / 128,
       {127, -128, 64, -64, 38, 0, -8, 120},
       1},
      // 34.64, -11.55, 80.82, -11.55, 127, -11.55
      {Choice(CodecId::kInt8, 8, kSym, 32),
       DType::kFloat32,
       kRotated,
       "c662b13d",
       "23 f4 51 f4 7f f4",
       11.0 / 127,
       {11.5, 23.5, 34.5, 46.5, 57.5, 69.5}},
      // 34.91, -11.64, 81.45, -11.64, 128, -11.64
      {Choice(CodecId::kInt8, 8, kClip16, 32),
       DType::kFloat32,
       kRotated,
       "0000b03d",
       "23 f4 51 f4 7f f4",
       11.0 / 128,
       {11.5, 23.5, 34.5, 46.5, 57.5, 69.5},
       1},

      // 7, -7, 3.5, -3.5, 2.1, 0, -.44, 6.56
      {Choice(CodecId::kInt4, 4, kSym),
       DType::kFloat32,
       kExample,
       "2549123e",
       "97 c4 02 70",
       1.0 / 7,
       {7, -7, 4, -4, 2, 0, 0, 7}},
      // 8, -8, 4, -4, 2.4, 0, -.5, 7.5
      {Choice(CodecId::kInt4, 4, kClip16),
       DType::kFloat32,
       kExample,
       "0000003e",
       "87 c4 02 70",
       .125,
       {7, -8, 4, -4, 2, 0, 0, 7},
       2},
      // 1.91, -.64, 4.45, -.64, 7, -.64
      {Choice(CodecId::kInt4, 4, kSym, 32),
       DType::kFloat32,
       kRotated,
       "9224c93f",
       "f2 f4 f7",
       11.0 / 7,
       {.5, 1.5, 1.5, 2.5, 3, 4}},
      // 2.18, -.73, 5.09, -.73, 8, -.73
      {Choice(CodecId::kInt4, 4, kClip16, 32),
       DType::kFloat32,
       kRotated,
       "0000b03f",
       "f2 f5 f7",
       11.0 / 8,
       {.5, 1.5, 2, 3, 3, 4},
       1},

      // the elements themselves
      {Choice(CodecId::kInt2, 2, kSym),
       DType::kFloat32,
       kExample,
       "0000803f",
       "0d 40",
       1,
       {1, -1, 0, 0, 0, 0, 0, 1}},
      // 2, -2, 1, -1, .6, 0, -.125, 1.875
      {Choice(CodecId::kInt2, 2, kClip16),
       DType::kFloat32,
       kExample,
       "0000003f",
       "d9 41",
       .5,
       {1, -2, 1, -1, 1, 0, 0, 1},
       2},
      // .27, -.09, .64, -.09, 1, -.09
      {Choice(CodecId::kInt2, 2, kSym, 32),
       DType::kFloat32,
       kRotated,
       "00003041",
       "10 01",
       11,
       {0, 0, .5, .5, .5, .5}},
      // .55, -.18, 1.27, -.18, 2, -.18
      {Choice(CodecId::kInt2, 2, kClip16, 32),
       DType::kFloat32,
       kRotated,
       "0000b040",
       "11 01",
       5.5,
       {.5, .5, .5, .5, .5, .5},
       1},
  };
}

std::vector<std::byte> FromHex(std::string_view hex) {
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Scales and codes begin at multiples of 16, gaps are zero.
std::vector<std::byte> BytesOf(const Golden& golden) {
  std::vector<std::byte> bytes;
  for (const std::string_view part : {golden.scale, golden.codes}) {
    const std::vector<std::byte> some = FromHex(part);
    bytes.insert(bytes.end(), some.begin(), some.end());
    bytes.resize((bytes.size() + 15) / 16 * 16);
  }
  return bytes;
}

class CodecGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CodecGoldenTest, BytesAndValues) {
  for (const Golden& golden : Goldens()) {
    SCOPED_TRACE(NameOf({golden.choice, golden.unquantized, GetParam()}));
    const auto codec =
        MakeCodec(golden.choice, golden.unquantized, TableNamed(GetParam()));
    const auto count = static_cast<int64_t>(golden.values.size());
    const std::vector<std::byte> expected = BytesOf(golden);
    std::vector<std::byte> bytes(codec->EncodedBytes(count), std::byte{0xff});
    codec->Encode({0, 0, count}, golden.values.data(), bytes.data());
    EXPECT_EQ(bytes, expected);
    EXPECT_EQ(codec->CountClipped({0, 0, count}, golden.values.data()),
              golden.clipped);
    std::vector<float> decoded(golden.values.size());
    ASSERT_EQ(codec->EncodedBytes(count), expected.size());
    codec->Decode(count, expected.data(), decoded.data());
    for (size_t i = 0; i < decoded.size(); ++i) {
      EXPECT_NEAR(decoded[i], golden.decoded[i] * golden.unit, 1e-6) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecGoldenTest, ::testing::ValuesIn(Tables()),
                         [](const auto& info) { return info.param; });

// A row that is new brings its bytes: in both ranges, rotated and not; or in
// all types of elements, where it keeps them.
TEST(GoldensTest, AreOfEveryRow) {
  std::set<std::string> present;
  for (const Golden& golden : Goldens()) {
    Case c = {golden.choice, golden.unquantized};
    present.insert(NameOf(c));
  }
  for (Case c : CasesOfOneTable()) {
    if (c.choice.quantizes()) {
      c.choice.block.block = 64;
      c.choice.block.rounding = kernels::Rounding::kNearest;
    }
    EXPECT_EQ(present.count(NameOf(c)), 1) << NameOf(c);
  }
}

}  // namespace
}  // namespace ballast::collective
