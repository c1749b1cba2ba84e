// I8, I9: the same ranks over other nodes × workers, with other buckets and
// push orders and partition groups, give the same weights bit for bit; a plain
// rank-order sum of node partials does not.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace ballast::sim {
namespace {

struct Shape {
  int nodes;
  int workers;
  int owners = 0;  // nodes of a partition group; 0: all
};

Scenario MakeScenario(const Shape& shape, uint64_t bucket_bytes,
                      PushOrder order) {
  const auto parsed = ParseScenario("topology", R"(
tensor wte float32 3x2049
tensor ones float32 2100
tensor half bfloat16 5x1000
tensor deep float16 2x3x4x100
tensor scalar float32 scalar
optimizer adamw lr 0.02 weight_decay 0.1
clip 1.0
steps 3
)");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  Scenario scenario = *parsed;
  scenario.nodes = shape.nodes;
  scenario.workers = shape.workers;
  if (shape.owners > 0) {
    absl::StrAppend(&scenario.exchange, " partition_nodes=", shape.owners);
  }
  scenario.bucket_bytes = bucket_bytes;
  scenario.push_order = order;
  return scenario;
}

class TopologyTest : public ::testing::TestWithParam<std::vector<Shape>> {};

TEST_P(TopologyTest, GivesTheSameBits) {
  std::vector<uint64_t> expected;
  uint64_t seed = 1;
  for (const Shape& shape : GetParam()) {
    for (const uint64_t bucket_bytes : {8 << 10, 20'000, 1 << 20}) {
      for (const PushOrder order :
           {PushOrder::kLayout, PushOrder::kReverse, PushOrder::kRandom}) {
        const Scenario scenario = MakeScenario(shape, bucket_bytes, order);
        const Result result =
            Cluster(scenario, ++seed, kernels::Reference()).Run();
        for (const std::string& violation : result.violations) {
          ADD_FAILURE() << shape.nodes << "x" << shape.workers << " seed "
                        << seed << ": " << violation;
        }
        ASSERT_EQ(result.weights.size(), 4);
        if (expected.empty()) expected = result.weights;
        EXPECT_EQ(result.weights, expected)
            << shape.nodes << "x" << shape.workers << " bucket "
            << bucket_bytes;
        EXPECT_EQ(result.wire_bytes > 0, shape.nodes > 1);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, TopologyTest,
    ::testing::Values(std::vector<Shape>{{1, 4}, {2, 2}, {4, 1}},
                      std::vector<Shape>{{1, 6}, {2, 3}, {3, 2}, {6, 1}},
                      std::vector<Shape>{{1, 5}, {5, 1}},
                      // T37: partition groups of any size; (n, p, k) of its
                      // ranks are (8, 4, 4), (8, 8, 4), (16, 8, 2), (12, 6, 3).
                      std::vector<Shape>{{1, 8},
                                         {2, 4, 1},
                                         {2, 4, 2},
                                         {4, 2, 2},
                                         {4, 2, 1},
                                         {8, 1, 4},
                                         {8, 1, 2}},
                      std::vector<Shape>{{1, 16}, {8, 2, 4}},
                      std::vector<Shape>{
                          {1, 12}, {4, 3, 2}, {6, 2, 3}, {6, 2, 2}, {3, 4, 1}}),
    [](const auto& info) { return absl::StrCat("Of", info.param[0].workers); });

// The control: sums in rank order, first inside the node, then over nodes.
void RankOrderSum(kernels::DType dtype, std::span<const void* const> sources,
                  int64_t count, float* out) {
  std::vector<float> sum(count);
  std::vector<float> next(count);
  for (const void* source : sources) {
    kernels::Reference().widen(source, dtype, count, next.data());
    for (int64_t i = 0; i < count; ++i) {
      sum[i] = source == sources[0] ? next[i] : sum[i] + next[i];
    }
  }
  std::copy(sum.begin(), sum.end(), out);
}

void RankOrderMean(std::span<const kernels::RankRange>,
                   std::span<const float* const> parts, int world_size,
                   int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = parts[0][i];
    for (size_t p = 1; p < parts.size(); ++p) sum += parts[p][i];
    out[i] = sum / static_cast<float>(world_size);
  }
}

TEST(TopologyControlTest, RankOrderSumsOfNodePartialsDiffer) {
  kernels::Kernels broken = kernels::Reference();
  broken.tree_sum = RankOrderSum;
  broken.finish_mean = RankOrderMean;
  std::vector<std::vector<uint64_t>> weights;
  for (const Shape& shape : {Shape{1, 4}, Shape{2, 2}}) {
    const Scenario scenario = MakeScenario(shape, 20'000, PushOrder::kLayout);
    weights.push_back(Cluster(scenario, 1, broken).Run().weights);
    ASSERT_GE(weights.back().size(), 2);
  }
  EXPECT_EQ(weights[0][0], weights[1][0]);  // initial ones
  EXPECT_NE(weights[0][1], weights[1][1]);
}

}  // namespace
}  // namespace ballast::sim
