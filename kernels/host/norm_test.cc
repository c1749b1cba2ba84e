// cell_norm on every instruction set against the reference. // I10, I15
#include <algorithm>
#include <bit>
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

std::string FuzzNorm(const std::vector<fuzz::Tested>& tables,
                     int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const Array<float> x(fuzz::Floats(count, random), random->Below(4));
    for (int64_t i = 0; i < count; i += kCellElements) {
      const int64_t size = std::min(kCellElements, count - i);
      const CellNorm expected = Reference().cell_norm(x.data() + i, size);
      for (const fuzz::Tested& tested : tables) {
        const CellNorm actual = tested.table.cell_norm(x.data() + i, size);
        if (actual.finite != expected.finite ||
            std::bit_cast<uint64_t>(actual.norm2) !=
                std::bit_cast<uint64_t>(expected.norm2)) {
          return tested.name + ": cell of " + std::to_string(size);
        }
      }
    }
    return std::string();
  });
}

TEST(NormTest, IsTheReference) {
  EXPECT_EQ(FuzzNorm(fuzz::HostTables(), kElements), "");
}

// Negative control: the same sum in sequence.
TEST(NormTest, NoticesAnotherOrder) {
  Kernels wrong = Reference();
  wrong.cell_norm = [](const float* x, int64_t count) {
    CellNorm norm = Reference().cell_norm(x, count);
    if (!norm.finite) return norm;
    norm.norm2 = 0;
    for (int64_t i = 0; i < count; ++i) {
      norm.norm2 += static_cast<double>(x[i]) * x[i];
    }
    return norm;
  };
  EXPECT_NE(FuzzNorm({{"wrong", wrong}}, 100'000), "");
}

}  // namespace
}  // namespace ballast::kernels
