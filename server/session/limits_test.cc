#include "server/session/limits.h"

#include <cmath>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::session {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

Placement MakePlacement(int rank, int world, int local_rank, int local_world,
                        int node) {
  return {Rank(rank), world, LocalRank(local_rank), local_world,
          NodeRank(node)};
}

JobSpec Spec() {
  JobSpec spec;
  spec.name = "gpt2";
  spec.tensors = {{.name = "a", .shape = {3}}};
  spec.groups = {kernels::HyperParameters{}};
  return spec;
}

TEST(CheckPlacementTest, RankFollowsFromNodeAndLocalRank) {  // I8
  EXPECT_THAT(CheckPlacement(MakePlacement(5, 8, 1, 4, 1), {}), IsOk());
  EXPECT_THAT(CheckPlacement(MakePlacement(6, 8, 1, 4, 1), {}),
              StatusIs(kInvalid, "rank is 6, but node_rank 1"));
}

TEST(CheckPlacementTest, RefusesNumbersOutOfRange) {
  for (const Placement& bad :
       {MakePlacement(0, 0, 0, 0, 0), MakePlacement(0, -1, 0, -1, 0),
        MakePlacement(0, 1, 0, 2, 0), MakePlacement(0, 3, 0, 2, 0),
        MakePlacement(-1, 1, -1, 1, 0), MakePlacement(1, 1, 0, 1, 1),
        MakePlacement(0, 1, 0, 0, 0),
        MakePlacement(INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, 0),
        MakePlacement(INT32_MIN, 1, INT32_MIN, 1, INT32_MIN)}) {
    EXPECT_FALSE(CheckPlacement(bad, {}).ok());
  }
}

TEST(CheckPlacementTest, BoundsWorldSize) {
  EXPECT_THAT(
      CheckPlacement(MakePlacement(0, 8, 0, 8, 0), {.max_workers_per_job = 4}),
      StatusIs(kExhausted, "limits.max_workers_per_job = 4"));
}

TEST(CheckSpecTest, ReadsThePolicy) {
  JobSpec spec = Spec();
  spec.exchange = "zeropp gradients.block=100";
  EXPECT_THAT(CheckSpec(spec, {}), StatusIs(kInvalid, "gradients.block"));
  for (const char* policy : {"exact", "zeropp", "zeropp weights.block=512",
                             "delta4", "delta2", "delta4 partition_nodes=2"}) {
    spec.exchange = policy;
    EXPECT_THAT(CheckSpec(spec, {}), base::IsOk()) << policy;
  }
}

TEST(CheckSpecTest, RefusesBadNamesAndValues) {
  const auto refuses = [](auto change) {
    JobSpec spec = Spec();
    change(spec);
    return !CheckSpec(spec, {.max_tensors = 2}).ok();
  };
  EXPECT_FALSE(refuses([](JobSpec&) {}));  // negative control
  EXPECT_TRUE(refuses([](JobSpec& s) { s.name = ""; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.name = "../etc"; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.tenant = "a b"; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.groups.clear(); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.groups.resize(257); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.gradient_clipping = -1; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.gradient_clipping = NAN; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.bucket_bytes = UINT64_MAX; }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.hold = -absl::Seconds(1); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.hold = absl::InfiniteDuration(); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.hold = absl::Nanoseconds(1); }));
  EXPECT_FALSE(refuses([](JobSpec& s) { s.hold = absl::Milliseconds(1); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.tensors.clear(); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.tensors.resize(3); }));
  EXPECT_TRUE(refuses([](JobSpec& s) { s.groups[0].lr = -1; }));
}

TEST(DifferenceTest, SaysWhichTensorAndHow) {
  JobSpec other = Spec();
  other.tensors[0].dtype = kernels::DType::kBFloat16;
  const std::string text = Difference(Spec(), other);
  EXPECT_NE(text.find("\"a\""), std::string::npos) << text;
  EXPECT_NE(text.find("bfloat16"), std::string::npos) << text;
  EXPECT_EQ(Difference(Spec(), Spec()), "");
}

TEST(DifferenceTest, SeesEveryFieldThatMustAgree) {
  const auto differs = [](auto change) {
    JobSpec other = Spec();
    change(other);
    return !Difference(Spec(), other).empty();
  };
  EXPECT_TRUE(differs([](JobSpec& s) { s.tenant = "b"; }));
  EXPECT_TRUE(differs([](JobSpec& s) { s.gradient_clipping = 2; }));
  EXPECT_TRUE(differs([](JobSpec& s) { s.bucket_bytes = 4096; }));
  EXPECT_TRUE(differs([](JobSpec& s) { s.groups.resize(2); }));
  EXPECT_TRUE(
      differs([](JobSpec& s) { s.optimizer = kernels::OptimizerKind::kAdam; }));
  EXPECT_TRUE(differs([](JobSpec& s) { s.hold = absl::Seconds(1); }));
  EXPECT_FALSE(differs([](JobSpec&) {}));  // negative control
}

TEST(DifferenceTest, NamesTheHyperparameter) {
  JobSpec other = Spec();
  other.groups[0].lr = 0.5;
  EXPECT_EQ(GroupDifference(Spec(), other),
            "param group 0: lr is 0.5 here, 0.001 on the ranks that are "
            "attached");
}

TEST(MemoryTest, LeastBytesNeverOverflows) {
  JobSpec spec = Spec();
  spec.tensors[0].shape = {INT64_MAX, INT64_MAX, INT64_MAX};
  EXPECT_GE(LeastBytes(spec, 1024), uint64_t{1} << 59);
  spec.tensors[0].shape = {-1};
  EXPECT_EQ(LeastBytes(spec, 1024), 0);
}

TEST(MemoryTest, FollowsTheFormula) {
  JobSpec spec = Spec();
  spec.optimizer = kernels::OptimizerKind::kAdamW;
  spec.tensors = {{.name = "a", .shape = {1 << 20}}};
  const auto layout = layout::Layout::Create(spec.tensors, {1, 4}, 1, {});
  ASSERT_THAT(layout, IsOk());
  const MemoryNeed need = EstimateMemory(spec, *layout, NodeRank(0), 2);
  EXPECT_EQ(need.gradients, 4 * (4 << 20));
  EXPECT_EQ(need.weights, 4 << 20);
  EXPECT_EQ(need.state, (1 << 20) * 4 * 4);  // master, m, v, gradient
}

// State over the nodes of a partition group: P / p; what is copied for
// snapshots, in turns with the other groups.
TEST(MemoryTest, PartitionGroupsShareTheState) {
  JobSpec spec = Spec();
  spec.optimizer = kernels::OptimizerKind::kAdamW;
  spec.tensors = {{.name = "a", .shape = {1 << 24}}};
  const auto need = [&](int owners, const std::string& exchange) {
    spec.exchange = exchange;
    const auto layout =
        layout::Layout::Create(spec.tensors, {4, 1, owners}, 1,
                               {.bucket_bytes = 4 << 20});  // 16, in all groups
    return EstimateMemory(spec, *layout, NodeRank(3), 2,
                          /*keeps_snapshots=*/true);
  };
  EXPECT_EQ(need(0, "exact").state, 4 << 24);
  EXPECT_EQ(need(2, "exact partition_nodes=2").state, 8 << 24);
  EXPECT_EQ(need(1, "exact partition_nodes=1").state, 16 << 24);
  for (const int owners : {0, 2, 1}) {
    EXPECT_EQ(need(owners, "exact").snapshot, 3 << 24) << owners;
  }
  EXPECT_EQ(need(2, "exact").weights, need(0, "exact").weights);
}

// Two sets, each of this node's shard and of another one's, and the copy that
// they are made from.
TEST(MemoryTest, CountsReplicas) {
  JobSpec spec = Spec();
  spec.optimizer = kernels::OptimizerKind::kAdamW;
  spec.tensors = {{.name = "a", .shape = {1 << 20}},
                  {.name = "frozen", .shape = {1 << 10}, .trainable = false}};
  const auto need = [&](int nodes, bool keeps_snapshots, bool keeps_replicas) {
    const auto layout = layout::Layout::Create(spec.tensors, {nodes, 1}, 1, {});
    return EstimateMemory(spec, *layout, NodeRank(0), 2, keeps_snapshots,
                          keeps_replicas);
  };
  EXPECT_EQ(need(4, true, false).replicas, 0);
  EXPECT_EQ(need(4, false, true).snapshot, 3 << 20);
  EXPECT_EQ(need(4, false, true).replicas, 4 * (3 << 20));
  EXPECT_EQ(need(4, true, true).total(), need(4, false, true).total());
  // The frozen tensor is the second one: of two nodes node 1 has it.
  EXPECT_EQ(need(2, false, true).replicas, 4 * (6 << 20) + 2 * (4 << 10));
  EXPECT_EQ(need(1, false, true).replicas, 2 * ((12 << 20) + (4 << 10)));
}

// The same where weights are not resident, but that a node stores its own part
// of the frozen ones.
TEST(MemoryTest, CountsReplicasOfWeightsThatAreNotResident) {
  JobSpec spec = Spec();
  spec.optimizer = kernels::OptimizerKind::kAdamW;
  spec.tensors = {{.name = "a", .shape = {1 << 20}},
                  {.name = "frozen", .shape = {1 << 10}, .trainable = false}};
  const auto need = [&](int nodes, const std::string& codecs) {
    const auto layout = layout::Layout::Create(spec.tensors, {nodes, 1}, 1, {});
    spec.exchange = codecs + " secondary_partition=none";
    return EstimateMemory(spec, *layout, NodeRank(0), 2,
                          /*keeps_snapshots=*/false, /*keeps_replicas=*/true);
  };
  EXPECT_EQ(need(4, "exact").snapshot, 3 << 20);
  EXPECT_EQ(need(4, "exact").replicas, 4 * ((3 << 20) + (1 << 10)));
  EXPECT_EQ(need(2, "exact").replicas, 4 * ((6 << 20) + (2 << 10)));
  EXPECT_EQ(need(4, "weights.codec=int8").snapshot, 4 << 20);
}

TEST(EstimateMemoryTest, ResidualsAreTwoOfEveryElement) {  // DESIGN 8: 8P
  JobSpec spec = Spec();
  spec.tensors = {{.name = "a", .shape = {1 << 20}}};
  const auto need = [&](int nodes, const std::string& exchange) {
    spec.exchange = exchange;
    const auto layout = layout::Layout::Create(spec.tensors, {nodes, 1}, 1, {});
    return EstimateMemory(spec, *layout, NodeRank(0), 2);
  };
  const std::string policy = "zeropp gradients.error_feedback=true";
  EXPECT_EQ(need(2, policy).residuals, 8 << 20);
  EXPECT_EQ(need(2, policy).total(), need(2, "zeropp").total() + (8 << 20));
  EXPECT_EQ(need(1, policy).residuals, 0);  // nothing is encoded
}

}  // namespace
}  // namespace ballast::session
