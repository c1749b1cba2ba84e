// cast, widen, reference and subtract on every instruction set against the
// scalar one. I5, I10
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_formats.h"
#include "kernels/host/fuzz.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

using fuzz::Array;
using fuzz::Random;

constexpr int64_t kElements = 10'000'000;

bool IsNan(float x) { return x != x; }

// NaN too: the bits of a converted NaN are specified.
std::string FuzzCast(const std::vector<fuzz::Tested>& tables, DType dtype,
                     int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const Array<float> in(fuzz::Floats(count, random), random->Below(4));
    const std::vector<uint16_t> zeros(count);
    Array<uint16_t> expected(zeros, 0, true);
    Reference().cast(in.data(), dtype, count, expected.data());
    for (const fuzz::Tested& tested : tables) {
      Array<uint16_t> actual(zeros, random->Below(4), true);
      tested.table.cast(in.data(), dtype, count, actual.data());
      const std::string wrong = fuzz::Difference(actual, expected);
      if (!wrong.empty()) return tested.name + ": " + wrong;
    }
    return std::string();
  });
}

std::string FuzzWiden(const std::vector<fuzz::Tested>& tables, DType dtype,
                      int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const Array<uint16_t> in(fuzz::Halves(count, random), random->Below(4));
    std::vector<float> expected(count);
    Reference().widen(in.data(), dtype, count, expected.data());
    for (const fuzz::Tested& tested : tables) {
      Array<float> actual(std::vector<float>(count), random->Below(4), true);
      tested.table.widen(in.data(), dtype, count, actual.data());
      for (int64_t i = 0; i < count; ++i) {
        if (Bits(actual.data()[i]) != Bits(expected[i])) {
          return tested.name + ": element " + std::to_string(i);
        }
      }
      if (!actual.IsGuarded()) return tested.name + " wrote outside";
    }
    return std::string();
  });
}

TEST(ConvertTest, CastsLikeTheReference) {
  const std::vector<fuzz::Tested> tables = fuzz::HostTables();
  EXPECT_EQ(FuzzCast(tables, DType::kBFloat16, kElements), "");
  EXPECT_EQ(FuzzCast(tables, DType::kFloat16, kElements), "");
}

TEST(ConvertTest, WidensLikeTheReference) {
  const std::vector<fuzz::Tested> tables = fuzz::HostTables();
  EXPECT_EQ(FuzzWiden(tables, DType::kBFloat16, kElements), "");
  EXPECT_EQ(FuzzWiden(tables, DType::kFloat16, kElements), "");
}

// All 65,536 patterns, NaN included.
TEST(ConvertTest, WidensAndCastsEveryHalf) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    SCOPED_TRACE(tested.name);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      std::vector<float> wide(all.size());
      tested.table.widen(all.data(), dtype, wide.size(), wide.data());
      std::vector<uint16_t> back(all.size());
      tested.table.cast(wide.data(), dtype, wide.size(), back.data());
      std::vector<float> expected_wide(all.size());
      Reference().widen(all.data(), dtype, wide.size(), expected_wide.data());
      std::vector<uint16_t> expected(all.size());
      Reference().cast(expected_wide.data(), dtype, wide.size(),
                       expected.data());
      EXPECT_EQ(back, expected);
    }
  }
}

TEST(ConvertTest, SubtractsLikeTheReference) {
  const std::vector<fuzz::Tested> tables = fuzz::HostTables();
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(fuzz::ForEachCount(
                  kElements / 4,
                  [&](Random* random, int64_t count) {
                    const Array<float> x(fuzz::Floats(count, random),
                                         random->Below(4));
                    std::vector<uint16_t> halves = fuzz::Halves(count, random);
                    if (dtype == DType::kFloat32) {
                      const std::vector<uint16_t> more =
                          fuzz::Halves(count, random);
                      halves.insert(halves.end(), more.begin(), more.end());
                    }
                    std::vector<float> expected(count);
                    std::vector<float> start(count);
                    Reference().subtract(x.data(), halves.data(), dtype, count,
                                         expected.data());
                    for (const fuzz::Tested& tested : tables) {
                      Array<float> actual(std::vector<float>(count),
                                          random->Below(4), true);
                      tested.table.subtract(x.data(), halves.data(), dtype,
                                            count, actual.data());
                      if (!actual.IsGuarded()) {
                        return tested.name + " wrote outside";
                      }
                      for (int64_t i = 0; i < count; ++i) {
                        // The bits of a NaN that is made are not specified.
                        if (Bits(actual.data()[i]) != Bits(expected[i]) &&
                            !(IsNan(actual.data()[i]) && IsNan(expected[i]))) {
                          return tested.name + ": element " + std::to_string(i);
                        }
                      }
                      tested.table.reference(halves.data(), dtype, count,
                                             actual.data());
                      Reference().reference(halves.data(), dtype, count,
                                            start.data());
                      for (int64_t i = 0; i < count; ++i) {
                        if (Bits(actual.data()[i]) != Bits(start[i])) {
                          return tested.name + ": start " + std::to_string(i);
                        }
                      }
                      if (!actual.IsGuarded()) {
                        return tested.name + " wrote outside";
                      }
                    }
                    return std::string();
                  }),
              "");
  }
}

TEST(ConvertTest, CopiesFloats) {
  const std::vector<float> in = {1, 2, 3};
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    std::vector<float> out(3);
    tested.table.cast(in.data(), DType::kFloat32, 3, out.data());
    EXPECT_EQ(out, in);
    tested.table.widen(out.data(), DType::kFloat32, 2, out.data() + 1);
    EXPECT_EQ(out, (std::vector<float>{1, 1, 2}));  // may overlap
    tested.table.cast(nullptr, DType::kFloat32, 0, nullptr);
  }
}

// Negative control: a cast that truncates.
TEST(ConvertTest, NoticesTruncation) {
  Kernels wrong = Reference();
  wrong.cast = [](const float* in, DType, int64_t count, void* out) {
    for (int64_t i = 0; i < count; ++i) {
      static_cast<uint16_t*>(out)[i] = static_cast<uint16_t>(Bits(in[i]) >> 16);
    }
  };
  EXPECT_NE(FuzzCast({{"wrong", wrong}}, DType::kBFloat16, 100'000), "");
}

}  // namespace
}  // namespace ballast::kernels
