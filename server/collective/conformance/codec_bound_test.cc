// How far what every codec decodes is from what was meant, block by block, and
// how many elements it says that it clips: held against double precision, and
// against nothing that encodes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/stochastic.h"
#include "server/collective/codec.h"
#include "server/collective/codec_registry.h"
#include "server/collective/conformance/codec_cases.h"
#include "server/collective/special/special_bound.h"
#include "server/layout/exchange_plan.h"

namespace ballast::collective {
namespace {

using kernels::kCellElements;

constexpr uint64_t kKey = 5;
constexpr int64_t kFirst = 3 * kCellElements;

std::unique_ptr<Codec> CodecOf(const Case& c) {
  return MakeCodec(c.choice, c.unquantized, TableNamed(c.table));
}

// Scales are 2 % too large, and two clipped elements too many are counted: of
// one, fp32 may be in doubt (Clipped).
class Wrong final : public Codec {
 public:
  explicit Wrong(const Case& c) : spec_(c.choice.block), codec_(CodecOf(c)) {}
  const CodecTraits& traits() const override { return codec_->traits(); }
  int64_t EncodedBytes(int64_t count) const override {
    return codec_->EncodedBytes(count);
  }
  int64_t PayloadBytes(int64_t count) const override {
    return codec_->PayloadBytes(count);
  }
  void Encode(const Run& run, const float* in, std::byte* out) const override {
    codec_->Encode(run, in, out);
    for (int64_t i = 0; i < kernels::NumBlocks(spec_, run.count); ++i) {
      float scale;
      std::memcpy(&scale, out + i * sizeof(scale), sizeof(scale));
      scale *= 1.02f;
      std::memcpy(out + i * sizeof(scale), &scale, sizeof(scale));
    }
  }
  void Decode(int64_t count, const std::byte* in, float* out) const override {
    codec_->Decode(count, in, out);
  }
  void DecodeAdd(int64_t count, const std::byte* in,
                 float* out) const override {
    codec_->DecodeAdd(count, in, out);
  }
  int64_t CountClipped(const Run& run, const float* in) const override {
    return codec_->CountClipped(run, in) + 2;
  }
  double ErrorBound(double absmax) const override {
    return codec_->ErrorBound(absmax);
  }

 private:
  const kernels::CodecSpec spec_;
  const std::unique_ptr<Codec> codec_;
};

// Neighbouring blocks are of other sizes, every fifth is zero: what holds of a
// cell's largest says nothing of them.
std::vector<float> Input(const Case& c, size_t count) {
  std::vector<float> values = Noise(count, count + 31);
  for (size_t i = 0; i < count; ++i) {
    const auto kind = static_cast<int>(i / c.choice.block.block % 5);
    values[i] = kind == 4 ? 0 : std::ldexp(values[i], -3 * kind);
  }
  return values;
}

// The block that begins at `begin`, as it is coded.
std::vector<double> Block(const kernels::CodecSpec& spec,
                          const std::vector<float>& values, size_t begin) {
  const size_t end = std::min(values.size(), begin + spec.block);
  std::vector<double> block(values.begin() + static_cast<int64_t>(begin),
                            values.begin() + static_cast<int64_t>(end));
  if (spec.hadamard != 0) Rotate(&block, std::gcd(block.size(), size_t{32}));
  return block;
}

double Largest(const std::vector<double>& block) {
  double largest = 0;
  for (const double y : block) largest = std::max(largest, std::abs(y));
  return largest;
}

// Half a place of an element that is cast (FORMAT.md 6).
double CastBound(kernels::DType dtype, double x) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return 0;
    case kernels::DType::kBFloat16:
      return std::max(std::ldexp(std::abs(x), -8), 0x1p-134);
    case kernels::DType::kFloat16:
      return std::max(std::ldexp(std::abs(x), -11), 0x1p-25);
  }
  return 0;
}

// How many elements are further than I11 allows: rotated where the codec
// rotates, with what fp32 loses in both rotations.
int64_t CountBeyond(const Codec& codec, const Case& c,
                    const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(codec.EncodedBytes(count));
  std::vector<float> decoded(values.size());
  codec.Encode({kKey, kFirst, count}, values.data(), bytes.data());
  codec.Decode(count, bytes.data(), decoded.data());
  int64_t beyond = 0;
  if (!c.choice.quantizes()) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = std::abs(double{decoded[i]} - values[i]);
      if (!(error <= CastBound(c.unquantized, values[i]))) ++beyond;
    }
    return beyond;
  }
  const kernels::CodecSpec& spec = c.choice.block;
  kernels::CodecSpec as_coded = spec;
  as_coded.hadamard = 0;
  for (size_t begin = 0; begin < values.size(); begin += spec.block) {
    const std::vector<double> meant = Block(spec, values, begin);
    const std::vector<double> is = Block(spec, decoded, begin);
    const std::vector<double> bound = BlockBound(as_coded, meant);
    const double fp32 = spec.hadamard != 0 ? 0x1p-15 * Largest(meant) : 0;
    for (size_t i = 0; i < meant.size(); ++i) {
      if (!(std::abs(is[i] - meant[i]) <= bound[i] + fp32)) ++beyond;
    }
  }
  return beyond;
}

// From `first` to `second`: those that fp32 may round to either side.
std::pair<int64_t, int64_t> Clipped(const Case& c,
                                    const std::vector<float>& values) {
  std::pair<int64_t, int64_t> clipped;
  if (!c.choice.quantizes()) return clipped;
  const kernels::CodecSpec& spec = c.choice.block;
  if (spec.range == kernels::Range::kSym) return clipped;  // |y| <= D
  const double divisor = 1 << (spec.bits - 1);
  const double doubt = divisor * (spec.hadamard != 0 ? 0x1p-16 : 0x1p-21);
  for (size_t begin = 0; begin < values.size(); begin += spec.block) {
    const std::vector<double> block = Block(spec, values, begin);
    const double absmax = Largest(block);
    if (absmax < 0x1p-120) continue;
    const uint64_t cell = (kFirst + begin) / kCellElements;
    for (size_t i = 0; i < block.size(); ++i) {
      const double y = block[i] / absmax * divisor;
      // What is beyond the last code, D - 1, by so much goes up to D (`u` has
      // its own golden values).
      const auto index = static_cast<uint32_t>((begin + i) % kCellElements);
      const double up =
          spec.rounding == kernels::Rounding::kNearest
              ? 0.5
              : kernels::StochasticUniform(kernels::CellKey(kKey, cell), index);
      const double over = y - (divisor - 1) - up;
      if (over > doubt) ++clipped.first;
      if (over >= -doubt) ++clipped.second;
    }
  }
  return clipped;
}

bool CountsWhatIsClipped(const Codec& codec, const Case& c,
                         const std::vector<float>& values) {
  const auto [least, most] = Clipped(c, values);
  const int64_t counted = codec.CountClipped(
      {kKey, kFirst, static_cast<int64_t>(values.size())}, values.data());
  return least <= counted && counted <= most;
}

const size_t kCounts[] = {1, 31, 33, 2047, 5000, 8191};
constexpr size_t kMany = 32 * kCellElements;

class CodecBoundTest : public ::testing::TestWithParam<Case> {};

TEST_P(CodecBoundTest, EveryBlockIsWithinItsOwn) {  // I11
  const auto codec = CodecOf(GetParam());
  for (const size_t count : kCounts) {
    EXPECT_EQ(CountBeyond(*codec, GetParam(), Input(GetParam(), count)), 0)
        << count;
  }
}

// The controls: scales that are 2 % off; and where blocks are small, one scale
// for many of them.
TEST_P(CodecBoundTest, AScaleThatIsOffIsBeyondIt) {
  if (!GetParam().choice.quantizes()) GTEST_SKIP() << "no scale";
  const std::vector<float> values = Input(GetParam(), kMany);
  EXPECT_EQ(CountBeyond(*CodecOf(GetParam()), GetParam(), values), 0);
  EXPECT_GT(CountBeyond(Wrong(GetParam()), GetParam(), values), 0);
  Case coarse = GetParam();
  if (coarse.choice.block.block == kCellElements) return;
  coarse.choice.block.block = kCellElements;
  EXPECT_GT(CountBeyond(*CodecOf(coarse), GetParam(), values), 0);
}

TEST_P(CodecBoundTest, CountsWhatIsClipped) {
  const auto codec = CodecOf(GetParam());
  for (const size_t count : kCounts) {
    EXPECT_TRUE(
        CountsWhatIsClipped(*codec, GetParam(), Input(GetParam(), count)))
        << count;
  }
  const bool clips = GetParam().choice.quantizes() &&
                     GetParam().choice.block.range == kernels::Range::kClip16;
  const std::vector<float> values = Input(GetParam(), 5000);
  EXPECT_EQ(Clipped(GetParam(), values).first > 0, clips);
  // The control: two too many are seen.
  EXPECT_FALSE(CountsWhatIsClipped(Wrong(GetParam()), GetParam(), values));
}

INSTANTIATE_TEST_SUITE_P(All, CodecBoundTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace ballast::collective
