// Hops 1 and 2: what the owners get.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/canonical_tree.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"
#include "server/collective/collective_rig.h"

namespace ballast::collective {
namespace {

using kernels::RankRange;

struct Shape {
  int nodes;
  int workers;
};

constexpr Shape kShapes[] = {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {2, 3}, {3, 2},
                             {6, 1}, {1, 6}, {2, 4}, {5, 3}, {3, 8}};

// What the job must give, without nodes, buckets or cells: the canonical tree
// over all ranks, divided once.
struct Expected {
  std::vector<std::vector<float>> means;
  kernels::ExactSum norm;
};

Expected WholeWorld(const layout::Layout& layout, const MakeGradient& gradient,
                    int world_size) {
  Expected expected;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    std::vector<float>& mean = expected.means.emplace_back();
    if (!layout.tensors()[i].trainable) continue;
    const int64_t count = layout.places()[i].num_elements;
    std::vector<std::vector<std::byte>> gradients;
    std::vector<const void*> sources;
    for (int rank = 0; rank < world_size; ++rank) {
      gradients.push_back(gradient(layout.tensors()[i], count, i, rank));
      sources.push_back(gradients.back().data());
    }
    mean.resize(count);
    kernels::Reference().tree_sum(layout.tensors()[i].dtype, sources, count,
                                  mean.data());
    for (float& x : mean) x /= static_cast<float>(world_size);
    for (int64_t cell = 0; cell < count; cell += layout::kCellElements) {
      expected.norm.Add(
          kernels::Reference()
              .cell_norm(mean.data() + cell,
                         std::min(layout::kCellElements, count - cell))
              .norm2);
    }
  }
  return expected;
}

bool SameBits(const std::vector<std::vector<float>>& a,
              const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(),
                                     a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

TEST(CollectiveReduceTest, EqualsTheTreeOverAllRanks) {  // I6, I7, I8, I15
  for (const Shape& shape : kShapes) {
    Rig rig({.nodes = shape.nodes, .workers = shape.workers});
    rig.CreateAll(Generation(1));
    const Expected expected =
        WholeWorld(rig.layout(), NoiseGradient(), shape.nodes * shape.workers);
    for (int64_t step = 1; step <= 2; ++step) {
      rig.ReduceAll(Step(step));
      EXPECT_TRUE(SameBits(rig.Means(), expected.means))
          << shape.nodes << "x" << shape.workers;
      EXPECT_EQ(rig.Norm(), expected.norm);
    }
  }
}

TEST(CollectiveReduceTest, BitsDoNotDependOnCutsOrderOrTiming) {  // I9, I25
  const Shape shapes[] = {{1, 6}, {2, 3}, {3, 2}, {6, 1}};
  const Expected expected =
      WholeWorld(Rig({.nodes = 6}).layout(), NoiseGradient(), 6);
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const Shape shape = shapes[seed % 4];
    const uint64_t bucket_bytes[] = {1, 20'000, 100'000, 1 << 22};
    Rig rig({.nodes = shape.nodes,
             .workers = shape.workers,
             .bucket_bytes = bucket_bytes[seed / 4 % 4],
             .chunk_bytes = seed * 3'000,
             .buckets_in_flight = static_cast<int>(1 + seed % 5),
             .batch_bytes = static_cast<int64_t>(1 + seed % 3 * 20'000),
             .seed = seed,
             .faults = {.max_delay = absl::Milliseconds(2), .loss = 0.2}});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    EXPECT_TRUE(SameBits(rig.Means(), expected.means)) << "seed " << seed;
    EXPECT_EQ(rig.Norm(), expected.norm) << "seed " << seed;
  }
}

// Negative control: adding node partials in rank order, as one would without
// the tree, gives other bits.
TEST(CollectiveReduceTest, RankOrderSumsOfNodePartialsDiffer) {  // I8
  const Rig rig({.nodes = 2, .workers = 3});
  const Expected expected = WholeWorld(rig.layout(), NoiseGradient(), 6);
  int64_t num_different = 0;
  int64_t num_elements = 0;
  for (size_t i = 0; i < expected.means.size(); ++i) {
    const layout::TensorSpec& tensor = rig.layout().tensors()[i];
    if (tensor.dtype != kernels::DType::kFloat32) continue;
    const int64_t count = expected.means[i].size();
    std::vector<std::vector<float>> ranks;
    for (int rank = 0; rank < 6; ++rank) {
      const auto bytes = NoiseGradient()(tensor, count, i, rank);
      std::memcpy(ranks.emplace_back(count).data(), bytes.data(), bytes.size());
    }
    for (int64_t e = 0; e < count; ++e) {
      const float left = (ranks[0][e] + ranks[1][e]) + ranks[2][e];
      const float right = (ranks[3][e] + ranks[4][e]) + ranks[5][e];
      num_different += (left + right) / 6.0f != expected.means[i][e];
    }
    num_elements += count;
  }
  EXPECT_GT(num_different, num_elements / 10);
}

TEST(CollectiveReduceTest, TheMeanOfOnesIsOne) {  // I6
  const Shape shapes[] = {{1, 64}, {64, 1}, {8, 8},  {5, 3}, {3, 7},
                          {7, 9},  {1, 63}, {61, 1}, {2, 1}, {13, 4}};
  for (const Shape& shape : shapes) {
    Rig rig({.nodes = shape.nodes,
             .workers = shape.workers,
             .tensors = {{"f", {300}},
                         {"b", {2049}, kernels::DType::kBFloat16},
                         {"h", {}, kernels::DType::kFloat16}},
             .gradient = ConstantGradient(1)});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    for (const std::vector<float>& mean : rig.Means()) {
      EXPECT_TRUE(std::ranges::all_of(mean, [](float x) { return x == 1; }))
          << shape.nodes << "x" << shape.workers;
    }
    EXPECT_EQ(rig.Norm().ToDouble(), 300 + 2049 + 1);  // once each: I15
  }
}

TEST(CollectiveReduceTest, StaysWithinTheDoublePrecisionBound) {  // I6
  constexpr int kWorld = 15;
  Rig rig({.nodes = 5, .workers = 3});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  const std::vector<std::vector<float>> means = rig.Means();
  for (size_t i = 0; i < means.size(); ++i) {
    const int64_t count = means[i].size();
    const kernels::DType dtype = rig.layout().tensors()[i].dtype;
    std::vector<double> sum(count);
    std::vector<double> magnitude(count);
    for (int rank = 0; rank < kWorld; ++rank) {
      const auto bytes =
          NoiseGradient()(rig.layout().tensors()[i], count, i, rank);
      std::vector<float> wide(count);
      kernels::Reference().widen(bytes.data(), dtype, count, wide.data());
      for (int64_t e = 0; e < count; ++e) {
        sum[e] += wide[e];
        magnitude[e] += std::abs(wide[e]);
      }
    }
    for (int64_t e = 0; e < count; ++e) {
      const double bound = kWorld * std::ldexp(magnitude[e] / kWorld, -24);
      ASSERT_LE(std::abs(means[i][e] - sum[e] / kWorld), bound);
    }
  }
}

TEST(CollectiveReduceTest, NonFiniteIsSeenByTheOwner) {  // I10
  const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  for (const float value : values) {
    Rig rig({.nodes = 3, .workers = 2});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    for (int node = 0; node < 3; ++node) {
      EXPECT_TRUE(rig.observer(node).total.finite);
    }
    // One element, of the last worker, in "large".
    const layout::TensorPlace& place = rig.layout().places()[8];
    std::memcpy(rig.gradients(2, 1).data() + place.gradient_offset + 4 * 777,
                &value, sizeof(value));
    rig.ReduceAll(Step(2));
    int num_not_finite = 0;
    for (int node = 0; node < 3; ++node) {
      num_not_finite += rig.observer(node).total.finite ? 0 : 1;
    }
    EXPECT_EQ(num_not_finite, 1);
  }
}

TEST(CollectiveReduceTest, OnlyOwnedElementsAreWritten) {  // I3, I14
  Rig rig({.nodes = 3, .workers = 2});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  for (int node = 0; node < 3; ++node) {
    int64_t num_written = 0;
    for (const float x : rig.state_gradient(node)) {
      num_written += std::isnan(x) ? 0 : 1;
    }
    int64_t num_owned = 0;
    for (const layout::Bucket& bucket : rig.layout().buckets()) {
      num_owned += bucket.shards[node].num_elements;
    }
    EXPECT_EQ(num_written, num_owned);
  }
}

}  // namespace
}  // namespace ballast::collective
