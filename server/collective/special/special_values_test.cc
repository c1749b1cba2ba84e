// What is not like noise, on every path: 1e30, subnormals, zeros, one outlier
// per block, constants, all beside one another. Within the bound of each block
// (special_bound.h), on all nodes, and the bits of whole tensors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "server/base/ids.h"
#include "server/base/random.h"
#include "server/collective/coded_testing.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/delta_testing.h"
#include "server/collective/special/special_bound.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"

namespace ballast::collective {
namespace {

using kernels::DType;

constexpr size_t kCell = 2048;
constexpr size_t kOutlierEvery = 128;  // the smallest block below has 128

// Cell by cell another kind; `rank` and `tensor` make other values of it.
std::vector<float> Special(size_t count, int tensor, int rank) {
  base::SeededRandom random(7'000'000 + 1000 * tensor + rank);
  const auto noise = [&random] {
    return static_cast<float>(random.Below(2'000'001)) / 1e6f - 1;
  };
  std::vector<float> values(count);
  for (size_t e = 0; e < count; ++e) {
    const bool is_outlier = e % kOutlierEvery == 5;
    const float x = noise();
    switch (e / kCell % 7) {
      case 0:
        values[e] = 1e30f * x;
        break;
      case 1:  // subnormal
        values[e] = 1e-39f * x;
        break;
      case 2:
        values[e] = 0;
        break;
      case 3:
        values[e] = is_outlier ? (x < 0 ? -1.0f : 1.0f) : 1e-3f * x;
        break;
      case 4:
        values[e] = -3.75f;
        break;
      case 5:  // in one block
        values[e] = is_outlier ? 1e30f * x : 1e-39f * x;
        break;
      default:  // blocks of zeros beside others
        values[e] = e / kOutlierEvery % 2 == 0 ? 0 : 1e-5f * x;
    }
  }
  return values;
}

MakeGradient SpecialGradient() {
  return [](const layout::TensorSpec& tensor, int64_t count, int index,
            int rank) {
    const std::vector<float> values = Special(count, index, rank);
    std::vector<std::byte> bytes(count * SizeOf(tensor.dtype));
    kernels::Reference().cast(values.data(), tensor.dtype, count, bytes.data());
    return bytes;
  };
}

// fp16 has no 1e30.
std::vector<layout::TensorSpec> Tensors() {
  return {{"w", {9 * kCell + 333}, DType::kFloat32},
          {"half", {3, 5 * kCell + 7}, DType::kBFloat16},
          {"small", {77}, DType::kFloat32}};
}

struct Seen {
  int64_t violations = 0;
  double worst = 0;  // error by bound
};

void Look(double is, double meant, double bound, Seen* seen) {
  const double error = std::abs(is - meant);
  if (!(error <= bound)) ++seen->violations;
  // Of what is smaller than a block can hold the bound is the value itself.
  if (bound > 0 && std::abs(meant) > 1e-30) {
    seen->worst = std::max(seen->worst, error / bound);
  }
}

// What the sums of `policy` lost, looked at as if `expected` had made them.
Seen LookAtMeans(Rig* rig, const std::string& expected, Shape shape) {
  const layout::ExchangePolicy policy = *layout::ParsePolicy(expected);
  const layout::Topology topology{shape.nodes, shape.workers,
                                  policy.partition_nodes};
  const double world = shape.nodes * shape.workers;
  Seen seen;
  for (int group = 0; group < topology.num_groups(); ++group) {
    const auto means = rig->Means(group);
    for (size_t t = 0; t < means.size(); ++t) {
      const auto count = static_cast<int64_t>(means[t].size());
      const layout::CodecChoice choice =
          layout::CodecsOf(policy, rig->layout().tensors()[t].name, count)
              .gradients;
      std::vector<double> sum(count), bound(count), size(count);
      const auto add_bound = [&](const std::vector<float>& values) {
        const std::vector<double> more = Bound(choice, values);
        for (int64_t e = 0; e < count; ++e) bound[e] += more[e];
      };
      for (int g = 0; g < topology.num_groups(); ++g) {
        std::vector<float> of_group;
        for (int i = 0; i < topology.num_owners(); ++i) {
          const int node = topology.NodeAt(g, NodeRank(i)).value();
          std::vector<float> values =
              NodeSum(rig->layout(), SpecialGradient(), t, node, shape.workers);
          for (int64_t e = 0; e < count; ++e) {
            sum[e] += values[e];
            size[e] += std::abs(values[e]);
          }
          if (topology.num_owners() > 1) {
            add_bound(values);
            values = ThereAndBack(choice, KeyOf(policy, t, 1, node), values);
          }
          AddTo(&of_group, values);
        }
        if (topology.num_groups() > 1) add_bound(of_group);
      }
      // fp32 additions, of values that may be off by the bound.
      for (int64_t e = 0; e < count; ++e) {
        const double slack =
            shape.nodes * 0x1p-22 * (size[e] + bound[e]) + 4 * world * 0x1p-149;
        Look(means[t][e], sum[e] / world, (bound[e] + slack) / world, &seen);
      }
    }
  }
  return seen;
}

struct Case {
  std::string policy;
  Shape shape;
};

const char* const kGradientPolicies[] = {
    "gradients.codec=int8",
    "gradients.codec=int4",
    "gradients.codec=int8 gradients.hadamard=32",
    "gradients.codec=int4 gradients.hadamard=32",
    "gradients.codec=int4 gradients.rounding=stochastic seed=3",
    "gradients.codec=int8 gradients.hadamard=32 gradients.rounding=stochastic",
    "gradients.codec=int8 gradients.range=clip16",
    "gradients.codec=int4 gradients.range=clip16 gradients.hadamard=32",
    "gradients.codec=int4 gradients.error_feedback=true",
    "zeropp",
    "delta4",
    "delta2",
    "exact",
};

Rig Make(const Case& c, bool halves = false) {
  return Rig({.nodes = c.shape.nodes,
              .workers = c.shape.workers,
              .tensors = Tensors(),
              .gradient = SpecialGradient(),
              .exchange = c.policy,
              .halves = halves});
}

TEST(SpecialValuesTest, SumsOfGradients) {  // I11, I25
  for (const char* const policy : kGradientPolicies) {
    for (const Shape& shape : {Shape{2, 2}, Shape{3, 1}, Shape{4, 2}}) {
      Rig rig = Make({policy, shape});
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const Seen seen = LookAtMeans(&rig, policy, shape);
      const std::string what =
          absl::StrCat(policy, ", ", shape.nodes, "x", shape.workers);
      EXPECT_EQ(seen.violations, 0) << what;
      // The control: the bound is not loose.
      if (rig.plan().quantizes_gradients()) {
        EXPECT_GT(seen.worst, 0.1) << what;
      }
      EXPECT_TRUE(SameBits(
          rig.Means(),
          WholeTensors(rig.layout(), policy, SpecialGradient(), shape).means))
          << what;
      EXPECT_TRUE(rig.observer(0).total.finite);
    }
  }
}

TEST(SpecialValuesTest, SumsOfPartitionGroups) {  // I11, I25
  for (const char* const policy : kGradientPolicies) {
    if (std::string(policy).find("error_feedback") != std::string::npos) {
      continue;  // not with groups
    }
    for (const int owners : {1, 2}) {
      const std::string grouped =
          absl::StrCat(policy, " partition_nodes=", owners);
      const Shape shape{4, 2};
      Rig rig = Make({grouped, shape});
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const Seen seen = LookAtMeans(&rig, grouped, shape);
      EXPECT_EQ(seen.violations, 0) << grouped;
      EXPECT_TRUE(SameBits(rig.Means(0), rig.Means(1))) << grouped;
    }
  }
}

TEST(SpecialValuesTest, ExactSumsOnTheirWay) {  // I8, I25
  for (const bool halves : {false, true}) {
    const Case c{"exact", {4, 2}};
    Rig rig = Make(c, halves);
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    EXPECT_EQ(LookAtMeans(&rig, c.policy, c.shape).violations, 0);
    EXPECT_TRUE(SameBits(rig.Means(), WholeTensors(rig.layout(), c.policy,
                                                   SpecialGradient(), c.shape)
                                          .means));
  }
}

// The control: one scale for more than a block, a coarser code and the clipped
// end are each beyond it.
TEST(SpecialValuesTest, WhatAnotherCodecLostIsBeyondTheBound) {  // I11
  const struct {
    const char* is;
    const char* taken_for;
  } pairs[] = {
      {"gradients.codec=int4 gradients.block=2048", "gradients.codec=int4"},
      {"gradients.codec=int4", "gradients.codec=int8"},
      {"gradients.codec=int4 gradients.range=clip16", "gradients.codec=int4"},
      {"gradients.codec=int4", "exact"},
      {"gradients.codec=int4 gradients.rounding=stochastic",
       "gradients.codec=int4"},
  };
  for (const auto& [is, taken_for] : pairs) {
    Rig rig = Make({is, {2, 2}});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    EXPECT_GT(LookAtMeans(&rig, taken_for, {2, 2}).violations, 0) << is;
  }
}

// What two steps sent together is off by what the second one left over.
TEST(SpecialValuesTest, FeedbackOwesNoMoreThanOneStep) {  // I12
  const std::string text = "gradients.codec=int4 gradients.error_feedback=true";
  const Shape shape{2, 2};
  const layout::ExchangePolicy policy = *layout::ParsePolicy(text);
  Rig rig = Make({text, shape});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  const auto first = rig.Means();
  rig.SetOptimizerStep(1);
  rig.OnEachNode([](Collective* one) { one->OnCommitted(1); });
  rig.ReduceAll(Step(2));
  const auto second = rig.Means();
  Seen seen;
  Seen without;  // the control: as if each step stood for itself
  for (size_t t = 0; t < first.size(); ++t) {
    const auto count = static_cast<int64_t>(first[t].size());
    const layout::CodecChoice choice =
        layout::CodecsOf(policy, rig.layout().tensors()[t].name, count)
            .gradients;
    std::vector<double> sum(count), bound(count), size(count);
    for (int node = 0; node < shape.nodes; ++node) {
      const std::vector<float> values =
          NodeSum(rig.layout(), SpecialGradient(), t, node, shape.workers);
      const std::vector<float> sent =
          ThereAndBack(choice, KeyOf(policy, t, 1, node), values);
      std::vector<float> meant = values;
      for (int64_t e = 0; e < count; ++e) meant[e] += values[e] - sent[e];
      const std::vector<double> more = Bound(choice, meant);
      for (int64_t e = 0; e < count; ++e) {
        sum[e] += 2 * double{values[e]};
        size[e] += 2 * std::abs(double{values[e]});
        bound[e] += more[e];
      }
    }
    for (int64_t e = 0; e < count; ++e) {
      const double slack = 0x1p-20 * (size[e] + bound[e]) + 0x1p-146;
      Look((double{first[t][e]} + second[t][e]) * 4, sum[e], bound[e] + slack,
           &seen);
      Look(double{first[t][e]} * 8, sum[e], bound[e] + slack, &without);
    }
  }
  EXPECT_EQ(seen.violations, 0);
  EXPECT_GT(without.violations, 0);
}

// Finite on every rank, and too large together: in the sum, or rotated.
TEST(SpecialValuesTest, WhatOverflowsIsSeen) {  // I10
  const auto is_finite = [](const std::string& policy, float value) {
    Rig rig({.nodes = 2,
             .workers = 2,
             .tensors = Tensors(),
             .gradient = ConstantGradient(value),
             .exchange = policy});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    return rig.observer(0).total.finite && rig.observer(1).total.finite;
  };
  for (const char* const policy : kGradientPolicies) {
    EXPECT_FALSE(is_finite(policy, 3e38f)) << policy;
    EXPECT_TRUE(is_finite(policy, 1e36f)) << policy;
    const bool is_rotated =
        layout::ParsePolicy(policy)->gradients.block.hadamard != 0;
    EXPECT_EQ(is_finite(policy, 3e37f), !is_rotated) << policy;
  }
}

// What every node shows of masters that are special, after `shown`: as values,
// or as differences from what was shown.
void PublishSpecial(const std::string& text, int nodes, int64_t step) {
  const layout::ExchangePolicy policy = *layout::ParsePolicy(text);
  const bool is_delta = policy.weight_mode == layout::WeightMode::kDelta;
  Job job({.nodes = nodes, .tensors = Tensors(), .exchange = text});
  Seen seen;
  for (int64_t s = step; s < step + 3; ++s) {
    std::vector<std::vector<float>> before;
    for (size_t t = 0; t < Tensors().size(); ++t) {
      before.push_back(job.model().published(t));
      const std::vector<float> values =
          Special(before[t].size(), static_cast<int>(t), static_cast<int>(s));
      for (size_t e = 0; e < values.size(); ++e) {
        job.model().SetMaster(t, static_cast<int64_t>(e), values[e]);
      }
    }
    job.model().ToMasters(&job.rig());
    job.rig().StartPublishAll(Step(s));
    job.rig().Settle();
    for (size_t t = 0; t < before.size(); ++t) {
      const layout::TensorSpec& tensor = job.rig().layout().tensors()[t];
      const layout::CodecChoice choice =
          layout::CodecsOf(policy, tensor.name, before[t].size()).weights;
      std::vector<float> meant = job.model().master(t);
      if (choice.quantizes() && is_delta) {
        for (size_t e = 0; e < meant.size(); ++e) meant[e] -= before[t][e];
      }
      const std::vector<double> bound = Bound(choice, meant);
      for (int node = 0; node < nodes; ++node) {
        std::vector<float> shown(meant.size());
        kernels::Reference().widen(
            job.rig().weights(node).data() +
                job.rig().layout().places()[t].weight_offset,
            tensor.dtype, static_cast<int64_t>(shown.size()), shown.data());
        const double ulp = tensor.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-22;
        for (size_t e = 0; e < shown.size(); ++e) {
          const double master = job.model().master(t)[e];
          const double size = std::abs(master) + bound[e] +
                              (is_delta ? std::abs(before[t][e]) : 0);
          Look(shown[e], master, bound[e] + ulp * size + 0x1p-133, &seen);
        }
      }
    }
    EXPECT_TRUE(job.Failures().empty());
    for (int node = 1; node < nodes; ++node) {
      EXPECT_TRUE(job.rig().weights(node) == job.rig().weights(0)) << text;
    }
    if (!is_delta) continue;
    job.model().Publish(s);
    job.ExpectSame(text);
  }
  EXPECT_EQ(seen.violations, 0) << text;
  EXPECT_GT(seen.worst, 0.25) << text;
}

TEST(SpecialValuesTest, WeightsAsValues) {  // I11, I25
  for (const char* const codec :
       {"weights.codec=int8 weights.block=256", "weights.codec=int8",
        "weights.codec=int4 weights.block=128", "zeropp",
        "weights.codec=int8 weights.block=128 partition_nodes=2"}) {
    PublishSpecial(codec, 4, 1);
  }
}

TEST(SpecialValuesTest, WeightsAsDifferences) {  // I11, I25
  for (const char* const policy : kDeltaPolicies) {
    for (const int nodes : {2, 3}) PublishSpecial(policy, nodes, 1);
  }
  PublishSpecial("delta4 partition_nodes=2", 4, 1);
}

// Among them the steps in which all nodes compare what they show.
TEST(SpecialValuesTest, WeightsThatAreCompared) {  // I2, I25
  PublishSpecial("delta4 weights.resync_every_steps=200", 3, 199);
}

}  // namespace
}  // namespace ballast::collective
