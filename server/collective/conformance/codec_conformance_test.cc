// What every codec of the registry must do, with every parameter that a policy
// can give it, on every table of kernels that this machine can choose.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "server/base/random.h"
#include "server/collective/codec.h"
#include "server/collective/codec_registry.h"
#include "server/collective/conformance/codec_cases.h"
#include "server/collective/error_sums.h"
#include "server/layout/codec_table.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"

namespace ballast::collective {
namespace {

using kernels::DType;
using kernels::kCellElements;
using layout::CodecChoice;

class CodecConformanceTest : public ::testing::TestWithParam<Case> {
 protected:
  CodecConformanceTest()
      : codec_(MakeCodec(GetParam().choice, GetParam().unquantized,
                         TableNamed(GetParam().table))) {}

  const Codec& codec() const { return *codec_; }

  std::vector<std::byte> Encode(const std::vector<float>& values,
                                uint64_t key = 5, int64_t first = 0) const {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> bytes(codec().EncodedBytes(count), std::byte{0xff});
    codec().Encode({key, first, count}, values.data(), bytes.data());
    return bytes;
  }
  std::vector<float> Decode(const std::vector<std::byte>& bytes,
                            size_t count) const {
    std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
    codec().Decode(static_cast<int64_t>(count), bytes.data(), values.data());
    return values;
  }
  std::vector<float> There(const std::vector<float>& values) const {
    return Decode(Encode(values), values.size());
  }

  const std::unique_ptr<Codec> codec_;
};

const size_t kCounts[] = {0,    1,    2,    7,    31,   32,  33,
                          2047, 2048, 2049, 4096, 5000, 8191};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST_P(CodecConformanceTest, SizesAreThoseOfTheFormula) {  // I21
  EXPECT_EQ(codec().EncodedBytes(0), 0);
  EXPECT_EQ(codec().PayloadBytes(0), 0);
  for (const size_t count : kCounts) {
    const int64_t payload = codec().PayloadBytes(count);
    EXPECT_EQ(payload, layout::PayloadOf(GetParam().choice,
                                         GetParam().unquantized, count));
    EXPECT_EQ(codec().EncodedBytes(count) % kernels::kRunAlignment, 0);
    EXPECT_GE(codec().EncodedBytes(count), payload);
    EXPECT_LT(codec().EncodedBytes(count) - payload,
              2 * kernels::kRunAlignment);
  }
  // Whole cells have no byte of padding, so cuts cost nothing.
  if (!GetParam().choice.quantizes() || GetParam().choice.block.block <= 512) {
    EXPECT_EQ(codec().EncodedBytes(3 * kCellElements),
              codec().PayloadBytes(3 * kCellElements));
  }
}

TEST_P(CodecConformanceTest, EveryElementIsWithinTheBound) {  // I11
  const auto check = [&](const std::vector<float>& values,
                         const std::string& what) {
    const std::vector<float> decoded = There(values);
    for (size_t cell = 0; cell < values.size(); cell += kCellElements) {
      const size_t end = std::min<size_t>(cell + kCellElements, values.size());
      double absmax = 0;
      for (size_t i = cell; i < end; ++i) {
        absmax = std::max<double>(absmax, std::fabs(values[i]));
      }
      const double bound = codec().ErrorBound(absmax);
      for (size_t i = cell; i < end; ++i) {
        ASSERT_LE(std::fabs(double{decoded[i]} - values[i]), bound)
            << what << ", element " << i << " of " << values.size();
      }
    }
  };
  for (const size_t count : kCounts) {
    for (const float size : {1.0f, 1e-30f, 1e-38f, 1e4f}) {
      std::vector<float> values = Noise(count, count + 1);
      for (float& value : values) value *= size;
      check(values, "noise");
    }
    check(std::vector<float>(count, 0), "zeros");
    check(std::vector<float>(count, -3.75f), "a constant");
    std::vector<float> outlier(count, 1e-3f);
    for (size_t i = 5; i < count; i += 300) outlier[i] = i % 2 == 0 ? 1 : -1;
    check(outlier, "outliers");
    if (GetParam().unquantized == DType::kFloat16) continue;
    std::vector<float> large = Noise(count, 3);
    for (float& value : large) value *= 1e30f;
    check(large, "1e30");
  }
}

// The control: a bound that everything meets says nothing.
TEST_P(CodecConformanceTest, TheBoundIsNotLoose) {
  if (codec().traits().is_exact) GTEST_SKIP();
  const std::vector<float> values = Noise(kCellElements, 2);
  const std::vector<float> decoded = There(values);
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    worst = std::max(worst, std::fabs(double{decoded[i]} - values[i]));
  }
  const bool is_rotated =
      GetParam().choice.quantizes() && GetParam().choice.block.hadamard != 0;
  EXPECT_GT(worst, codec().ErrorBound(1) / (is_rotated ? 64 : 4));
}

TEST_P(CodecConformanceTest, ExtremesAndZerosAreRight) {  // I11
  const std::vector<float> zeros = There(std::vector<float>(3000, 0.0f));
  EXPECT_TRUE(SameBits(zeros, std::vector<float>(3000, 0.0f)));
  const bool is_clipped = GetParam().choice.quantizes() &&
                          GetParam().choice.block.range != kernels::Range::kSym;
  if (is_clipped) GTEST_SKIP();  // loses the positive extreme, by its name
  for (const size_t count : {1, 31, 32, 54, 77, 2041, 2048, 2049, 2080}) {
    const std::vector<float> ones = There(std::vector<float>(count, 1.0f));
    for (const float x : ones) EXPECT_NEAR(x, 1, 2e-6);  // I6
  }
}

TEST_P(CodecConformanceTest, NotFiniteStaysNotFinite) {  // I10
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t count : kCounts) {
      for (size_t at = 0; at < count; at += 1 + count / 3) {
        std::vector<float> values = Noise(count, 9);
        values[at] = bad;
        const std::vector<std::byte> bytes = Encode(values);
        EXPECT_FALSE(std::isfinite(Decode(bytes, count)[at]));
        std::vector<float> sum(count, 1.0f);
        codec().DecodeAdd(count, bytes.data(), sum.data());
        EXPECT_FALSE(std::isfinite(sum[at]));
      }
    }
  }
}

TEST_P(CodecConformanceTest, DecodeAddAddsWhatDecodeGives) {
  for (const size_t count : kCounts) {
    const std::vector<std::byte> bytes = Encode(Noise(count, 4));
    std::vector<float> expected = Noise(count, 5);
    std::vector<float> sum = expected;
    const std::vector<float> decoded = Decode(bytes, count);
    for (size_t i = 0; i < count; ++i) expected[i] += decoded[i];
    codec().DecodeAdd(count, bytes.data(), sum.data());
    EXPECT_TRUE(SameBits(sum, expected)) << count;
  }
}

TEST_P(CodecConformanceTest, CutsBetweenCellsChangeNothing) {  // I9
  for (const size_t count : {2049, 5000, 8191}) {
    const std::vector<float> values = Noise(count, 6);
    const std::vector<float> whole = There(values);
    std::vector<float> parts;
    for (size_t cut = 0; cut < count; cut += kCellElements) {
      const std::vector<float> part(
          values.begin() + cut,
          values.begin() + std::min<size_t>(cut + kCellElements, count));
      const std::vector<float> decoded =
          Decode(Encode(part, 5, static_cast<int64_t>(cut)), part.size());
      parts.insert(parts.end(), decoded.begin(), decoded.end());
    }
    EXPECT_TRUE(SameBits(parts, whole)) << count;
  }
}

TEST_P(CodecConformanceTest, WritesAllOfItsBytesAndNoOther) {  // I13
  for (const size_t count : kCounts) {
    const std::vector<float> values = Noise(count, 7);
    const size_t size = codec().EncodedBytes(count);
    std::vector<std::byte> a(size + 16, std::byte{0xaa});
    std::vector<std::byte> b(size + 16, std::byte{0x55});
    codec().Encode({5, 0, static_cast<int64_t>(count)}, values.data(),
                   a.data());
    codec().Encode({5, 0, static_cast<int64_t>(count)}, values.data(),
                   b.data());
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + size, b.begin()));
    EXPECT_TRUE(std::all_of(a.begin() + size, a.end(),
                            [](std::byte x) { return x == std::byte{0xaa}; }));
  }
}

TEST_P(CodecConformanceTest, ACellFitsTheMeter) {
  EXPECT_TRUE(FitsMeter(codec()));
}

// What decoding gives over `steps` steps, and what is left at the end, less
// what went in: the worst of all elements. Residuals as FORMAT.md 10 has them;
// without `feeds_back` each step forgets the last one's.
double Unaccounted(const Codec& codec, const std::vector<float>& input,
                   int steps, bool feeds_back) {
  const auto count = static_cast<int64_t>(input.size());
  std::vector<std::byte> bytes(codec.EncodedBytes(count));
  std::vector<float> residual(input.size());
  std::vector<float> decoded(input.size());
  std::vector<double> sum(input.size());
  for (int step = 1; step <= steps; ++step) {
    std::vector<float> meant = input;
    for (size_t i = 0; feeds_back && i < meant.size(); ++i) {
      meant[i] += residual[i];
    }
    codec.Encode({static_cast<uint64_t>(step), 0, count}, meant.data(),
                 bytes.data());
    codec.Decode(count, bytes.data(), decoded.data());
    for (size_t i = 0; i < meant.size(); ++i) {
      residual[i] = meant[i] - decoded[i];
      sum[i] += double{decoded[i]} - input[i];
    }
  }
  double worst = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    worst = std::max(worst, std::fabs(sum[i] + residual[i]));
  }
  return worst;
}

// Of whatever gradients may use. Two roundings to fp32 a step, of values that
// stay below four times the input's.
TEST_P(CodecConformanceTest, ErrorFeedbackTelescopes) {  // I12
  if (!layout::FindCodec(GetParam().choice.codec)->for_gradients ||
      GetParam().unquantized != DType::kFloat32) {
    GTEST_SKIP() << "gradients do not use it";
  }
  constexpr int kSteps = 40;
  constexpr double kRounding = kSteps * 4 * 0x1p-23;
  for (const size_t count : {1, 33, 2048, 5000}) {
    const std::vector<float> input = Noise(count, 17);
    EXPECT_LE(Unaccounted(codec(), input, kSteps, /*feeds_back=*/true),
              kRounding)
        << count;
    // The control: errors that are forgotten add up.
    if (codec().traits().is_exact || count < 2048) continue;
    EXPECT_GT(Unaccounted(codec(), input, kSteps, /*feeds_back=*/false),
              10 * kRounding)
        << count;
  }
}

TEST_P(CodecConformanceTest, TraitsSayWhatItDoes) {
  if (GetParam().choice.quantizes()) {
    EXPECT_EQ(codec().traits().name, layout::Name(GetParam().choice.codec));
  }
  const std::vector<float> values = Noise(2048, 8);
  EXPECT_EQ(SameBits(There(values), values), codec().traits().is_exact);
  EXPECT_EQ(Encode(values, 1) != Encode(values, 2),
            codec().traits().is_stochastic);
  EXPECT_EQ(Encode(values, 1), Encode(values, 1));
}

TEST_P(CodecConformanceTest, AnyBytesDecode) {  // I27
  base::SeededRandom random(11);
  for (const size_t count : kCounts) {
    std::vector<std::byte> bytes(codec().EncodedBytes(count));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random.Below(256));
    }
    Decode(bytes, count);
    std::vector<float> sum(count);
    codec().DecodeAdd(count, bytes.data(), sum.data());
  }
}

// Every table writes the same bytes and reads the same values. // I25
TEST_P(CodecConformanceTest, GivesTheBitsOfTheReference) {
  const auto reference = MakeCodec(GetParam().choice, GetParam().unquantized,
                                   &kernels::Reference());
  for (const size_t count : kCounts) {
    const std::vector<float> values = Noise(count, 13);
    const std::vector<std::byte> bytes = Encode(values, 5, kCellElements);
    std::vector<std::byte> expected(bytes.size());
    std::vector<float> decoded(count);
    reference->Encode({5, kCellElements, static_cast<int64_t>(count)},
                      values.data(), expected.data());
    reference->Decode(count, expected.data(), decoded.data());
    EXPECT_EQ(bytes, expected) << count;
    EXPECT_TRUE(SameBits(Decode(bytes, count), decoded)) << count;
  }
}

class Wide final : public Codec {
 public:
  explicit Wide(int64_t bytes) : bytes_(bytes) {}
  const CodecTraits& traits() const override { return traits_; }
  int64_t EncodedBytes(int64_t count) const override { return count * bytes_; }
  int64_t PayloadBytes(int64_t count) const override { return count * bytes_; }
  void Encode(const Run&, const float*, std::byte*) const override {}
  void Decode(int64_t, const std::byte*, float*) const override {}
  void DecodeAdd(int64_t, const std::byte*, float*) const override {}
  int64_t CountClipped(const Run&, const float*) const override { return 0; }
  double ErrorBound(double) const override { return 0; }

 private:
  const int64_t bytes_;
  const CodecTraits traits_ = {.name = "wide"};
};

// The control: a codec that takes more for a cell is refused.
TEST(FitsMeterTest, NotMoreThanFiveBytesAnElement) {
  EXPECT_TRUE(FitsMeter(Wide(5)));
  EXPECT_FALSE(FitsMeter(Wide(6)));
}

INSTANTIATE_TEST_SUITE_P(All, CodecConformanceTest,
                         ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return NameOf(info.param); });

// Relative L2 error on Gaussian blocks, published for these parameters by an
// independent implementation; 5 % apart at most.
class CodecTableTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CodecTableTest, GaussianBlocks) {
  constexpr auto kSym = kernels::Range::kSym;
  constexpr auto kClip16 = kernels::Range::kClip16;
  const struct {
    CodecChoice choice;
    double error;
  } rows[] = {{{layout::CodecId::kInt8, {8, 64, kClip16}}, .0060},
              {{layout::CodecId::kInt8, {8, 256, kClip16}}, .0069},
              {{layout::CodecId::kInt8, {8, 2048, kClip16}}, .0081},
              {{layout::CodecId::kInt4, {4, 64, kClip16}}, .0976},
              {{layout::CodecId::kInt4, {4, 128, kClip16}}, .105},
              {{layout::CodecId::kInt4, {4, 2048, kClip16}}, .129},
              {{layout::CodecId::kInt4, {4, 64, kSym}}, .1056},
              {{layout::CodecId::kInt4, {4, 128, kSym}}, .117},
              {{layout::CodecId::kInt4, {4, 512, kSym}}, .132},
              {{layout::CodecId::kInt4, {4, 2048, kSym}}, .147}};
  base::SeededRandom random(21);
  const auto uniform = [&random] {
    return (static_cast<double>(random.Below(1 << 30)) + 0.5) / (1 << 30);
  };
  std::vector<float> values(256 * kCellElements);
  for (float& value : values) {
    value = static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                               std::cos(2 * 3.14159265358979 * uniform()));
  }
  const auto count = static_cast<int64_t>(values.size());
  for (const auto& [choice, error] : rows) {
    const auto codec =
        MakeCodec(choice, DType::kFloat32, TableNamed(GetParam()));
    std::vector<std::byte> bytes(codec->EncodedBytes(count));
    std::vector<float> decoded(values.size());
    codec->Encode({0, 0, count}, values.data(), bytes.data());
    codec->Decode(count, bytes.data(), decoded.data());
    double error2 = 0;
    double value2 = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error2 += std::pow(double{decoded[i]} - values[i], 2);
      value2 += std::pow(values[i], 2);
    }
    EXPECT_NEAR(std::sqrt(error2 / value2), error, 0.05 * error)
        << layout::Name(choice.codec) << " " << choice.block.block;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecTableTest, ::testing::ValuesIn(Tables()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ballast::collective
