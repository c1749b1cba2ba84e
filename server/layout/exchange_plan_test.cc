#include "server/layout/exchange_plan.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/status_matchers.h"

namespace ballast::layout {
namespace {

using kernels::DType;

std::vector<TensorSpec> Tensors() {
  return {{"w", {3, 20'000}, DType::kBFloat16},
          {"large", {100'003}, DType::kFloat32},
          {"edge", {16 << 10}, DType::kFloat16},
          {"bias", {77}, DType::kFloat32},
          {"frozen", {50'000}, DType::kFloat32, false},
          {"none", {0}, DType::kBFloat16}};
}

Layout Make(int nodes, int workers, uint64_t bucket_bytes) {
  return *Layout::Create(Tensors(), {nodes, workers}, 1,
                         {.bucket_bytes = bucket_bytes});
}

uint64_t CeilDivide(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Within the group as ever, and each group's sum to every other group.
TEST(ExchangePlanTest, PartitionGroupsSendTheirSumsToOneAnother) {  // I21, T37
  for (const auto& [nodes, owners] :
       {std::pair{4, 2}, {6, 2}, {6, 3}, {4, 1}, {4, 4}}) {
    for (const uint64_t bucket_bytes : {1, 100'000, 4 << 20}) {
      const Layout layout = *Layout::Create(Tensors(), {nodes, 2, owners}, 1,
                                            {.bucket_bytes = bucket_bytes});
      const ExchangePlan plan(
          *ParsePolicy("zeropp partition_nodes=" + std::to_string(owners)),
          layout);
      const PayloadBytes model = plan.Model(layout);
      PayloadBytes sent;
      for (int node = 0; node < nodes; ++node) {
        const PayloadBytes one = plan.PerStep(layout, NodeRank(node));
        sent.gradients += one.gradients;
        sent.weights += one.weights;
        EXPECT_EQ(one, plan.PerStep(layout, NodeRank(node % owners)));
      }
      const uint64_t groups = nodes / owners;
      EXPECT_EQ(sent.weights, groups * (owners - 1) * model.weights);
      EXPECT_EQ(sent.gradients, groups * (owners - 1) * model.gradients +
                                    groups * (groups - 1) * model.gradients)
          << nodes << " nodes, groups of " << owners;
      EXPECT_EQ(plan.quantizes_weights(), owners > 1);
      EXPECT_TRUE(plan.quantizes_gradients());
    }
  }
}

TEST(ExchangePlanTest, AllNodesTogetherSendTheModelPerPeer) {  // I21
  // By hand: large tensors quantized, `edge` and `bias` as they are.
  const uint64_t gradients =
      30'000 + 4 * CeilDivide(60'000, 128) + CeilDivide(100'003, 2) +
      4 * CeilDivide(100'003, 128) + 4 * ((16 << 10) + 77);
  const uint64_t weights = 60'000 + 4 * CeilDivide(60'000, 256) + 100'003 +
                           4 * CeilDivide(100'003, 256) + 2 * (16 << 10) +
                           4 * 77;
  for (int nodes = 1; nodes <= 5; ++nodes) {
    for (const int workers : {1, 3, 4}) {
      for (const uint64_t bucket_bytes : {1, 100'000, 4 << 20}) {
        const Layout layout = Make(nodes, workers, bucket_bytes);
        const ExchangePlan plan(*ParsePolicy("zeropp"), layout);
        EXPECT_EQ(plan.Model(layout), (PayloadBytes{gradients, weights}));
        PayloadBytes sent;
        for (int node = 0; node < nodes; ++node) {
          const PayloadBytes one = plan.PerStep(layout, NodeRank(node));
          sent.gradients += one.gradients;
          sent.weights += one.weights;
        }
        const uint64_t peers = nodes - 1;
        EXPECT_EQ(sent, (PayloadBytes{peers * gradients, peers * weights}))
            << nodes << " nodes, buckets of " << bucket_bytes;
        EXPECT_EQ(plan.quantizes_weights(), nodes > 1);
        EXPECT_EQ(plan.quantizes_gradients(), nodes > 1);
      }
    }
  }
}

TEST(ExchangePlanTest, ExactSendsTheSumsOfSubtrees) {  // I8
  const Layout layout = Make(2, 3, 4 << 20);
  const ExchangePlan plan(*ParsePolicy("exact"), layout);
  EXPECT_FALSE(plan.quantizes_weights());
  EXPECT_FALSE(plan.quantizes_gradients());
  const uint64_t elements = layout.trainable_elements();
  // Nodes of 3 ranks in a tree of 6 have two subtrees each.
  EXPECT_EQ(plan.PerStep(layout, NodeRank(0)).gradients +
                plan.PerStep(layout, NodeRank(1)).gradients,
            2 * elements * 4);
}

TEST(ExchangePlanTest, TablesOfTheDesignHold) {  // DESIGN 7.4
  const Layout layout =
      *Layout::Create({{"wte", {50'257, 768}, DType::kBFloat16},
                       {"wpe", {1024, 768}, DType::kBFloat16},
                       {"mlp", {12, 768, 3072 * 8}, DType::kBFloat16}},
                      {4, 1}, 1, {});
  const double model = 2.0 * layout.trainable_elements();
  const ExchangePlan zeropp(*ParsePolicy("zeropp"), layout);
  EXPECT_NEAR(zeropp.Model(layout).total() / model, 0.773, 0.001);
  const ExchangePlan delta4(*ParsePolicy("delta4"), layout);
  EXPECT_NEAR(delta4.Model(layout).total() / model, 0.517, 0.0005);
  const ExchangePlan delta2(*ParsePolicy("delta2"), layout);
  EXPECT_NEAR(delta2.Model(layout).total() / model, 0.39, 0.002);
  const ExchangePlan exact(*ParsePolicy("exact"), layout);
  EXPECT_NEAR(exact.Model(layout).total() / model, 3, 1e-9);
}

TEST(ExchangePlanTest, APolicyThatTouchesNothingQuantizesNothing) {
  const Layout layout = Make(2, 1, 4 << 20);
  EXPECT_FALSE(ExchangePlan(*ParsePolicy("zeropp override:*=none"), layout)
                   .quantizes_weights());
  const ExchangePlan frozen(*ParsePolicy("override:frozen=int8"), layout);
  EXPECT_FALSE(frozen.quantizes_weights());
  const ExchangePlan empty(*ParsePolicy("override:none=int8"), layout);
  EXPECT_FALSE(empty.quantizes_gradients());
}

TEST(ExchangePlanTest, WhatIsQuantizedIsMetered) {  // I21
  const Layout layout = Make(2, 1, 4 << 20);
  const ExchangePlan plan(
      *ParsePolicy("zeropp override:large=none override:edge=int8"), layout);
  const std::vector<TensorId> expected = {TensorId(0), TensorId(2)};
  for (const Path path : kPaths) {
    const auto metered = plan.metered(path);
    EXPECT_EQ(std::vector<TensorId>(metered.begin(), metered.end()), expected);
    EXPECT_EQ(plan.MeteredIndex(path, TensorId(0)), 0);
    EXPECT_EQ(plan.MeteredIndex(path, TensorId(1)), -1);
    EXPECT_EQ(plan.MeteredIndex(path, TensorId(2)), 1);
    EXPECT_EQ(plan.MeteredIn(path, Step(5)).count, 2);
  }
  EXPECT_TRUE(ExchangePlan(*ParsePolicy("zeropp"), Make(1, 2, 4 << 20))
                  .metered(Path::kWeights)
                  .empty());
  const ExchangePlan blind(*ParsePolicy("zeropp metering.one_in=0"), layout);
  EXPECT_EQ(blind.MeteredIn(Path::kWeights, Step(5)).count, 0);
}

TEST(ExchangePlanTest, TheFormulaFollowsTheCodecsInForce) {  // I21
  const Layout layout = Make(2, 3, 4 << 20);
  ExchangePlan plan(*ParsePolicy("zeropp"), layout);
  const uint64_t before = plan.Model(layout).gradients;
  const auto change = [&](CodecId codec) {
    return plan.Apply({Path::kGradients, TensorId(1), codec});
  };
  EXPECT_FALSE(plan.NarrowerChoice(Path::kGradients, TensorId(1)).has_value());
  ASSERT_THAT(change(CodecId::kInt8), base::IsOk());
  EXPECT_EQ(plan.Model(layout).gradients - before, 100'003 - 50'002);
  EXPECT_EQ(plan.num_wider(Path::kGradients), 1);
  EXPECT_EQ(plan.num_wider(Path::kWeights), 0);
  EXPECT_EQ(plan.NarrowerChoice(Path::kGradients, TensorId(1)),
            plan.policy_codecs(TensorId(1)).gradients);
  ASSERT_THAT(change(CodecId::kNone), base::IsOk());
  EXPECT_EQ(plan.NarrowerChoice(Path::kGradients, TensorId(1))->codec,
            Narrower(CodecId::kNone));
  // All of them wide: still one sum per node, not those of subtrees.
  ASSERT_THAT(plan.Apply({Path::kGradients, TensorId(0), CodecId::kNone}),
              base::IsOk());
  EXPECT_TRUE(plan.quantizes_gradients());
  EXPECT_EQ(plan.PerStep(layout, NodeRank(0)).gradients +
                plan.PerStep(layout, NodeRank(1)).gradients,
            4 * static_cast<uint64_t>(layout.trainable_elements()));
  EXPECT_EQ(plan.num_wider(Path::kGradients), 2);
  ASSERT_THAT(change(CodecId::kInt4), base::IsOk());
  EXPECT_EQ(plan.num_wider(Path::kGradients), 1);
}

TEST(ExchangePlanTest, AChangeThatNoBudgetMakesIsRefused) {  // I27
  const Layout layout = Make(2, 1, 4 << 20);
  ExchangePlan plan(*ParsePolicy("zeropp"), layout);
  const CodecChange bad[] = {
      {Path::kGradients, TensorId(-1), CodecId::kInt8},
      {Path::kGradients, TensorId(6), CodecId::kInt8},
      {Path::kGradients, TensorId(3), CodecId::kInt8},  // opted out
      {static_cast<Path>(2), TensorId(1), CodecId::kInt8},
      {Path::kGradients, TensorId(1), CodecId::kInt2},
      {Path::kGradients, TensorId(1), static_cast<CodecId>(77)}};
  for (const CodecChange& change : bad) {
    EXPECT_THAT(plan.Apply(change),
                base::StatusIs(absl::StatusCode::kDataLoss, "codec"));
  }
  EXPECT_EQ(plan.num_wider(Path::kGradients), 0);
}

}  // namespace
}  // namespace ballast::layout
