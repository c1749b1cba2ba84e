#include "kernels/reference/convert.h"

#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_formats.h"

namespace ballast::kernels::reference {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 2047, 2048, 2049};
constexpr uint8_t kCanary = 0xa5;

std::vector<float> AnyBits(int64_t count) {
  std::mt19937 random(1);
  std::vector<float> values(count);
  for (float& value : values) value = FromBits(random());
  return values;
}

// I5, I13: exactly `count` elements of the declared type are written.
TEST(ConvertTest, CastsEveryElementAndNoMore) {
  for (const int64_t count : kCounts) {
    const std::vector<float> in = AnyBits(count);
    std::vector<uint16_t> out(count + 1, 0xa5a5);
    Cast(in.data(), DType::kBFloat16, count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(out[i], BFloat16FromFloat(in[i]));
    }
    EXPECT_EQ(out[count], 0xa5a5);
    Cast(in.data(), DType::kFloat16, count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(out[i], Float16FromFloat(in[i]));
    }
    EXPECT_EQ(out[count], 0xa5a5);
  }
}

TEST(ConvertTest, Float32IsCopiedBitForBit) {
  for (const int64_t count : kCounts) {
    const std::vector<float> in = AnyBits(count);
    std::vector<uint8_t> out(count * 4 + 1, kCanary);
    std::vector<float> back(count);
    Cast(in.data(), DType::kFloat32, count, out.data());
    Widen(out.data(), DType::kFloat32, count, back.data());
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(Bits(back[i]), Bits(in[i]));
    EXPECT_EQ(out.back(), kCanary);
  }
}

// FORMAT.md 9: what is not finite is no place to start from. // I10
TEST(ConvertTest, StartsFromWhatIsFinite) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> values = {1, inf, -2, -inf, nan, 0.5f, -nan};
    const std::vector<float> finite = {1, 0, -2, 0, 0, 0.5f, 0};
    std::vector<uint8_t> bytes(values.size() * SizeOf(dtype));
    Cast(values.data(), dtype, values.size(), bytes.data());
    std::vector<float> out(values.size() + 1, 7);
    FiniteOnly(bytes.data(), dtype, values.size(), out.data());
    EXPECT_EQ(out.back(), 7);
    out.pop_back();
    for (size_t i = 0; i < finite.size(); ++i) {
      EXPECT_EQ(Bits(out[i]), Bits(finite[i])) << i;
    }
    const std::vector<float> x(values.size(), 3);
    Subtract(x.data(), bytes.data(), dtype, values.size(), out.data());
    EXPECT_EQ(out, (std::vector<float>{2, 3, 5, 3, 3, 2.5f, 3}));
  }
}

// FORMAT.md 9: one fp32 subtraction of the widened element.
TEST(ConvertTest, SubtractsWhatIsWidened) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t count : kCounts) {
      std::vector<float> x(count + 1, 7);
      std::vector<float> base(count);
      for (int64_t i = 0; i < count; ++i) {
        x[i] = 0.001f * static_cast<float>(i % 777) - 0.3f;
        base[i] = x[i] * 1.01f;
      }
      std::vector<uint8_t> bytes(count * SizeOf(dtype));
      Cast(base.data(), dtype, count, bytes.data());
      Widen(bytes.data(), dtype, count, base.data());
      std::vector<float> out(count + 1, 7);
      Subtract(x.data(), bytes.data(), dtype, count, out.data());
      for (int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(Bits(out[i]), Bits(x[i] - base[i]));
      }
      EXPECT_EQ(out[count], 7);
      Subtract(x.data(), bytes.data(), dtype, count, x.data());  // in place
      EXPECT_EQ(x, out);
    }
  }
}

TEST(ConvertTest, WidensEveryPattern) {
  std::vector<uint16_t> in(65536);
  for (uint32_t i = 0; i < 65536; ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<float> out(65536);
  Widen(in.data(), DType::kBFloat16, 65536, out.data());
  for (int i = 0; i < 65536; ++i) {
    ASSERT_EQ(Bits(out[i]), Bits(BFloat16ToFloat(in[i])));
  }
  Widen(in.data(), DType::kFloat16, 65536, out.data());
  for (int i = 0; i < 65536; ++i) {
    ASSERT_EQ(Bits(out[i]), Bits(Float16ToFloat(in[i])));
  }
}

}  // namespace
}  // namespace ballast::kernels::reference
