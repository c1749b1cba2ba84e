// tree_sum and finish_mean on every instruction set against the reference.
// I6, I8, I25
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/host/fuzz.h"
#include "kernels/reference/reference.h"

namespace ballast::kernels {
namespace {

using fuzz::Array;
using fuzz::Random;

constexpr int64_t kElements = 10'000'000;

// World sizes by turns; `elements` counts those of all ranks.
int WorldSize(Random* random) {
  constexpr std::array<int, 12> kWorlds = {1, 2, 3, 4,  5,  6,
                                           7, 8, 9, 13, 16, 31};
  return kWorlds[random->Below(kWorlds.size())];
}

template <typename T>
struct Ranks {
  Ranks(int world, int64_t count, std::vector<T> (*values)(int64_t, Random*),
        Random* random) {
    for (int r = 0; r < world; ++r) {
      arrays.emplace_back(values(count, random), random->Below(4));
    }
    for (const Array<T>& array : arrays) pointers.push_back(array.data());
  }
  std::vector<Array<T>> arrays;
  std::vector<const void*> pointers;
};

template <typename T>
std::string FuzzTreeSum(const std::vector<fuzz::Tested>& tables, DType dtype,
                        std::vector<T> (*values)(int64_t, Random*),
                        int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    count = std::min<int64_t>(count, 5000);
    const Ranks<T> ranks(WorldSize(random), count, values, random);
    const std::vector<float> zeros(count);
    Array<float> expected(zeros, 0, true);
    Reference().tree_sum(dtype, ranks.pointers, count, expected.data());
    for (const fuzz::Tested& tested : tables) {
      Array<float> actual(zeros, random->Below(4), true);
      tested.table.tree_sum(dtype, ranks.pointers, count, actual.data());
      const std::string wrong = fuzz::Difference(actual, expected);
      if (!wrong.empty()) return tested.name + ": " + wrong;
    }
    return std::string();
  });
}

// Parts over a random cut of the ranks into nodes; onto one of the parts.
std::string FuzzMean(const std::vector<fuzz::Tested>& tables,
                     int64_t elements) {
  return fuzz::ForEachCount(elements, [&](Random* random, int64_t count) {
    const int world = WorldSize(random);
    std::vector<RankRange> ranges;
    for (int first = 0; first < world;) {
      const int local = 1 + random->Below(world - first);
      for (const RankRange& r : MaximalSubtrees({first, local}, world)) {
        ranges.push_back(r);
      }
      first += local;
    }
    std::vector<Array<float>> arrays;
    std::vector<const float*> parts;
    for (size_t i = 0; i < ranges.size(); ++i) {
      arrays.emplace_back(fuzz::Floats(count, random), random->Below(4), true);
      parts.push_back(arrays.back().data());
    }
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = arrays[i].data();
    Array<float> expected(std::vector<float>(count), 0, true);
    Reference().finish_mean(ranges, parts, world, count, expected.data());
    const int at = random->Below(static_cast<int>(parts.size()));
    const Array<float> part = arrays[at];
    for (const fuzz::Tested& tested : tables) {
      std::copy_n(part.data(), count, arrays[at].data());
      tested.table.finish_mean(ranges, parts, world, count, arrays[at].data());
      const std::string wrong = fuzz::Difference(arrays[at], expected);
      if (!wrong.empty()) return tested.name + ": " + wrong;
    }
    return std::string();
  });
}

TEST(ReduceTest, TreeSumIsTheReference) {
  const std::vector<fuzz::Tested> tables = fuzz::HostTables();
  EXPECT_EQ(FuzzTreeSum(tables, DType::kFloat32, fuzz::Floats, kElements), "");
  EXPECT_EQ(FuzzTreeSum(tables, DType::kBFloat16, fuzz::Halves, kElements), "");
  EXPECT_EQ(FuzzTreeSum(tables, DType::kFloat16, fuzz::Halves, kElements), "");
}

TEST(ReduceTest, MeanIsTheReference) {
  EXPECT_EQ(FuzzMean(fuzz::HostTables(), kElements), "");
}

TEST(ReduceTest, SumsOntoASource) {
  constexpr int64_t kCount = 2500;
  Random random(7);
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    for (const int world : {1, 2, 5, 8, 11}) {
      std::vector<std::vector<float>> ranks;
      std::vector<const void*> sources;
      for (int r = 0; r < world; ++r) {
        ranks.push_back(fuzz::Floats(kCount, &random));
      }
      for (const auto& rank : ranks) sources.push_back(rank.data());
      Array<float> expected(std::vector<float>(kCount), 0, true);
      Reference().tree_sum(DType::kFloat32, sources, kCount, expected.data());
      std::vector<float>& onto = ranks[world / 2];
      tested.table.tree_sum(DType::kFloat32, sources, kCount, onto.data());
      EXPECT_EQ(fuzz::Difference(Array<float>(onto, 0), expected), "")
          << tested.name << " " << world;
    }
  }
}

TEST(ReduceTest, NoSourcesAreZeros) {
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    std::vector<float> out(5, 1.0f);
    tested.table.tree_sum(DType::kFloat16, {}, 5, out.data());
    EXPECT_EQ(out, std::vector<float>(5));
  }
}

// Parts that are not a cover of the tree: NaN, and no access out of bounds.
TEST(ReduceTest, MissingPartsAreLoud) {
  const std::vector<float> part(40, 1.0f);
  const std::array<RankRange, 1> ranges = {{{0, 2}}};
  const std::array<const float*, 1> parts = {part.data()};
  for (const fuzz::Tested& tested : fuzz::HostTables()) {
    std::vector<float> out(part.size());
    tested.table.finish_mean(ranges, parts, 4, out.size(), out.data());
    for (const float value : out) EXPECT_NE(value, value);
  }
}

// Negative control: the same sum in rank order.
TEST(ReduceTest, NoticesRankOrder) {
  Kernels wrong = Reference();
  wrong.tree_sum = [](DType, std::span<const void* const> sources,
                      int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) {
      float sum = static_cast<const float*>(sources[0])[i];
      for (size_t r = 1; r < sources.size(); ++r) {
        sum += static_cast<const float*>(sources[r])[i];
      }
      out[i] = sum;
    }
  };
  EXPECT_NE(FuzzTreeSum<float>({{"wrong", wrong}}, DType::kFloat32,
                               fuzz::Floats, 100'000),
            "");
}

}  // namespace
}  // namespace ballast::kernels
