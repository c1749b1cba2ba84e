#include "server/transport/routed/cost_model.h"

#include "gtest/gtest.h"

namespace ballast::transport {
namespace {

// A gigabit network of kernel TCP: 30 us, 10 us a message, 118 MB/s; memory
// copies 5 GB/s.
constexpr LinkCost kEthernet = {30e-6, 10e-6, 1 / 118e6, 1 / 5e9};

Algorithm Chosen(Pattern pattern, int num_nodes, uint64_t bytes) {
  return Choose(kEthernet, pattern, num_nodes, bytes, std::nullopt);
}

TEST(CostModelTest, LargePartsHaveOneSenderAtATime) {
  for (const int nodes : {3, 4, 8, 17, 64}) {
    EXPECT_EQ(Chosen(Pattern::kGather, nodes, 16 << 20), Algorithm::kRing);
    EXPECT_EQ(Chosen(Pattern::kDeliver, nodes, 16 << 20), Algorithm::kPairwise);
  }
  EXPECT_EQ(Chosen(Pattern::kGather, 2, 16 << 20), Algorithm::kDirect);
  EXPECT_EQ(Chosen(Pattern::kDeliver, 2, 16 << 20), Algorithm::kDirect);
}

// A link of 250 Mbit/s whose rounds cost much more than a copy of the part.
TEST(CostModelTest, PartsThatAreNotSmallAreNotPacked) {
  constexpr LinkCost kSlow = {5e-3, 10e-6, 1 / 31e6, 1 / 5e9};
  const auto chosen = [&](uint64_t bytes) {
    return Choose(kSlow, Pattern::kGather, 16, bytes, std::nullopt);
  };
  EXPECT_EQ(chosen(kMaxPackedBytes + 1), Algorithm::kDirect);
  EXPECT_LT(
      Predict(kSlow, Algorithm::kDoubling, Pattern::kGather, 16, 1 << 20),
      0.95 * Predict(kSlow, Algorithm::kDirect, Pattern::kGather, 16, 1 << 20));
  EXPECT_EQ(Choose(kSlow, Pattern::kGather, 16, 1 << 20, Algorithm::kDoubling),
            Algorithm::kDoubling);
}

TEST(CostModelTest, ManyTinyPartsTakeFewMessages) {
  EXPECT_EQ(Chosen(Pattern::kGather, 32, 64), Algorithm::kDoubling);
  EXPECT_EQ(Chosen(Pattern::kGather, 33, 64), Algorithm::kBruck);
  EXPECT_EQ(Chosen(Pattern::kDeliver, 32, 64), Algorithm::kBruck);
  // Four nodes: two rounds' latency costs more than a message saved.
  EXPECT_EQ(Chosen(Pattern::kGather, 4, 64), Algorithm::kDirect);
}

// By hand, 4 nodes, 1000 bytes.
TEST(CostModelTest, PredictsWhatTheFormulaSays) {
  const LinkCost cost = {1, 0.1, 0.001, 0.01};
  // A tenth more than the ring's bytes: three send to one at once.
  EXPECT_DOUBLE_EQ(Predict(cost, Algorithm::kDirect, Pattern::kGather, 4, 1000),
                   1 + 0.3 + 3.3);
  EXPECT_DOUBLE_EQ(Predict(cost, Algorithm::kDirect, Pattern::kGather, 2, 1000),
                   1 + 0.1 + 1);
  EXPECT_DOUBLE_EQ(Predict(cost, Algorithm::kRing, Pattern::kGather, 4, 1000),
                   3 + 0.3 + 3);
  EXPECT_DOUBLE_EQ(
      Predict(cost, Algorithm::kDoubling, Pattern::kGather, 4, 1000),
      2 + 0.2 + 3 + 60);
  // Distances 1, 2, 3 have 1, 1, 2 bits: four blocks.
  EXPECT_DOUBLE_EQ(Predict(cost, Algorithm::kBruck, Pattern::kDeliver, 4, 1000),
                   2 + 0.2 + 4 + 80);
  EXPECT_EQ(Predict(cost, Algorithm::kDirect, Pattern::kGather, 1, 1000), 0);
}

TEST(CostModelTest, NothingKnownGoesDirectly) {
  EXPECT_EQ(Choose({}, Pattern::kGather, 1000, 1, std::nullopt),
            Algorithm::kDirect);
}

TEST(CostModelTest, WhatIsForcedCounts) {
  EXPECT_EQ(Choose({}, Pattern::kGather, 4, 1 << 20, Algorithm::kDoubling),
            Algorithm::kDoubling);
  EXPECT_EQ(Choose({}, Pattern::kGather, 5, 1 << 20, Algorithm::kDoubling),
            Algorithm::kBruck);
}

TEST(CostModelTest, SmallSumsAreHalvedWhereTheyCanBe) {
  const auto chosen = [](uint64_t bytes, bool can_halve,
                         std::optional<Algorithm> forced = std::nullopt) {
    return ChooseReduction(kEthernet, 32, bytes, can_halve, forced);
  };
  EXPECT_EQ(chosen(64, true), Algorithm::kHalving);
  EXPECT_EQ(chosen(64, false), Algorithm::kBruck);
  EXPECT_EQ(chosen(16 << 20, true), Algorithm::kPairwise);
  EXPECT_EQ(chosen(16 << 20, true, Algorithm::kHalving), Algorithm::kHalving);
  EXPECT_EQ(chosen(64, false, Algorithm::kHalving), Algorithm::kDirect);
  EXPECT_EQ(chosen(64, true, Algorithm::kPairwise), Algorithm::kPairwise);
}

TEST(CostModelTest, TheWorstOfEachCounts) {
  EXPECT_EQ(Worst({1, 2, 3, 4}, {4, 3, 2, 1}), (LinkCost{4, 3, 3, 4}));
  EXPECT_EQ(ToText(kEthernet), "latency 30 us, 10 us a message, 118 MB/s");
}

}  // namespace
}  // namespace ballast::transport
