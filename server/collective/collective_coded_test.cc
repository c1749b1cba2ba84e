// Quantized exchanges: what owners reduce to and what every node publishes,
// against whole tensors encoded in one piece, without nodes, buckets or cells.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic.h"
#include "server/base/status_matchers.h"
#include "server/collective/codec_registry.h"
#include "server/collective/coded_testing.h"
#include "server/collective/collective_rig.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"
#include "server/transport/transport.h"

namespace ballast::collective {
namespace {

constexpr Shape kShapes[] = {{1, 1}, {1, 4}, {4, 1}, {2, 2}, {2, 3}, {3, 2},
                             {6, 1}, {1, 6}, {2, 4}, {5, 3}, {3, 8}};

// Presets, and everything quantized, tensors of one element too.
const char* const kPolicies[] = {
    "zeropp",
    "weights.codec=int8 weights.block=256 gradients.codec=int4",
    "weights.codec=int4 weights.block=64 gradients.codec=int8 "
    "gradients.block=32 gradients.hadamard=32",
    "gradients.codec=int4 gradients.rounding=stochastic seed=9",
    "weights.codec=int8 override:cube=none override:seven=int4",
    "zeropp gradients.range=clip16 gradients.hadamard=32 "
    "gradients.rounding=stochastic",
};

TEST(CollectiveCodedTest, EqualsWholeTensors) {  // I3, I6, I7, I15
  for (const char* policy : kPolicies) {
    for (const Shape& shape : kShapes) {
      if (shape.nodes == 1) continue;
      Rig rig(
          {.nodes = shape.nodes, .workers = shape.workers, .exchange = policy});
      if (!rig.plan().quantizes_gradients()) continue;
      rig.CreateAll(Generation(1));
      for (int64_t step = 1; step <= 2; ++step) {
        rig.ReduceAll(Step(step));
        const Expected expected =
            WholeTensors(rig.layout(), policy, NoiseGradient(), shape, step);
        EXPECT_TRUE(SameBits(rig.Means(), expected.means))
            << policy << " on " << shape.nodes << "x" << shape.workers;
        EXPECT_EQ(rig.Norm(), expected.norm);
      }
    }
  }
}

TEST(CollectiveCodedTest, AwkwardShapes) {  // I4
  std::vector<layout::TensorSpec> tensors;
  for (const int64_t size : {0, 1, 2, 3, 4, 5, 6, 31, 2047, 2305, 50'257}) {
    tensors.push_back({"t" + std::to_string(size), {size}});
  }
  tensors.push_back({"prime", {7, 11, 13}, kernels::DType::kFloat16});
  for (const Shape& shape : {Shape{2, 3}, Shape{3, 2}, Shape{5, 3}}) {
    for (const char* policy : kPolicies) {
      Rig rig({.nodes = shape.nodes,
               .workers = shape.workers,
               .tensors = tensors,
               .exchange = policy});
      if (!rig.plan().quantizes_gradients()) continue;
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      EXPECT_TRUE(SameBits(
          rig.Means(),
          WholeTensors(rig.layout(), policy, NoiseGradient(), shape).means));
      rig.StartPublishAll(Step(1));
      rig.Settle();
      EXPECT_EQ(rig.observer(0).published.size(),
                rig.layout().buckets().size());
    }
  }
}

TEST(CollectiveCodedTest, BitsDoNotDependOnCutsOrderOrTiming) {  // I9, I25
  const Shape shapes[] = {{2, 3}, {3, 2}, {6, 1}};
  const Rig plain({.nodes = 2});
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const Shape shape = shapes[seed % 3];
    const char* const policy = kPolicies[seed % 2];
    const uint64_t bucket_bytes[] = {1, 20'000, 100'000, 1 << 22};
    Rig rig({.nodes = shape.nodes,
             .workers = shape.workers,
             .bucket_bytes = bucket_bytes[seed / 4 % 4],
             .chunk_bytes = seed * 3'000,
             .buckets_in_flight = static_cast<int>(1 + seed % 5),
             .seed = seed,
             .faults = {.max_delay = absl::Milliseconds(2),
                        .loss = 0.2,
                        .reorder = 0.2},
             .exchange = policy});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    const Expected expected =
        WholeTensors(plain.layout(), policy, NoiseGradient(), shape);
    EXPECT_TRUE(SameBits(rig.Means(), expected.means)) << "seed " << seed;
    EXPECT_EQ(rig.Norm(), expected.norm) << "seed " << seed;
  }
}

TEST(CollectiveCodedTest, TheMeanOfOnesIsOne) {  // I6
  for (const Shape& shape : kShapes) {
    for (const char* policy : {kPolicies[0], kPolicies[1], kPolicies[3]}) {
      Rig rig({.nodes = shape.nodes,
               .workers = shape.workers,
               .gradient = ConstantGradient(1),
               .exchange = policy});
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      for (const std::vector<float>& mean : rig.Means()) {
        for (const float x : mean) ASSERT_NEAR(x, 1, 2e-6) << policy;
      }
    }
  }
}

// T0 (b) without hop 1: a node sum has no error, each contribution half a
// step of its block, here of its cell.
TEST(CollectiveCodedTest, EveryElementIsWithinTheAnalyticBound) {  // I11
  for (const char* policy : kPolicies) {
    for (const Shape& shape : {Shape{2, 3}, Shape{5, 3}}) {
      Rig rig(
          {.nodes = shape.nodes, .workers = shape.workers, .exchange = policy});
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const auto means = rig.Means();
      const double world = shape.nodes * shape.workers;
      double largest = 0;
      for (size_t i = 0; i < means.size(); ++i) {
        if (means[i].empty()) continue;
        const auto codec =
            MakeCodec(rig.plan().codecs(TensorId(i)).gradients,
                      kernels::DType::kFloat32, &kernels::Reference());
        const int64_t count = means[i].size();
        std::vector<double> sum(count);
        std::vector<double> bound(count);
        for (int node = 0; node < shape.nodes; ++node) {
          const std::vector<float> values =
              NodeSum(rig.layout(), NoiseGradient(), i, node, shape.workers);
          for (int64_t e = 0; e < count; ++e) {
            double absmax = 0;
            const int64_t cell = e / 2048 * 2048;
            if (e == cell) {
              for (int64_t k = cell; k < std::min(cell + 2048, count); ++k) {
                absmax = std::max<double>(absmax, std::abs(values[k]));
              }
              absmax = codec->ErrorBound(absmax);
              for (int64_t k = cell; k < std::min(cell + 2048, count); ++k) {
                bound[k] += absmax;
              }
            }
            sum[e] += values[e];
          }
        }
        for (int64_t e = 0; e < count; ++e) {
          const double error = std::abs(means[i][e] - sum[e] / world);
          ASSERT_LE(error, bound[e] / world + 1e-6) << policy;
          largest = std::max(largest, error);
        }
      }
      // The control: something was quantized.
      EXPECT_EQ(largest > 1e-4, rig.plan().quantizes_gradients()) << policy;
    }
  }
}

// Sends to the first two peers what the other one should get, of one phase.
class SwappingTransport final : public transport::Transport {
 public:
  SwappingTransport(transport::Transport* inner, uint32_t phase)
      : inner_(inner), phase_(phase) {}
  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    transport::ExchangeSpec swapped = spec;
    if (PhaseOf(spec.phase) == phase_ && spec.sends.size() > 1 &&
        spec.sends[0].bytes.size() == spec.sends[1].bytes.size()) {
      std::swap(swapped.sends[0].bytes, swapped.sends[1].bytes);
    }
    return inner_->Prepare(swapped, observer);
  }

 private:
  transport::Transport* const inner_;
  const uint32_t phase_;
};

// T0, negative control: slices of two owners swapped are found.
TEST(CollectiveCodedTest, SwappedSlicesAreFound) {  // I7
  for (const std::string policy : {"exact", "zeropp"}) {
    for (const bool is_swapped : {false, true}) {
      RigOptions options{.nodes = 3,
                         .workers = 2,
                         .bucket_bytes = 1 << 20,
                         .tensors = {{"even", {3 * 8192}}},
                         .exchange = policy};
      if (is_swapped) {
        options.wrap_transport = [](NodeRank node, transport::Transport* inner)
            -> std::unique_ptr<transport::Transport> {
          if (node != NodeRank(0)) return nullptr;
          return std::make_unique<SwappingTransport>(inner, kReducePhase);
        };
      }
      Rig rig(options);
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const Expected expected =
          WholeTensors(rig.layout(), policy, NoiseGradient(), {3, 2});
      if (policy == "exact") {  // another order of sums: near, not the same
        double largest = 0;
        const auto means = rig.Means();
        for (size_t e = 0; e < means[0].size(); ++e) {
          largest = std::max<double>(
              largest, std::abs(means[0][e] - expected.means[0][e]));
        }
        EXPECT_EQ(largest < 1e-6, !is_swapped);
      } else {
        EXPECT_EQ(SameBits(rig.Means(), expected.means), !is_swapped);
      }
    }
  }
}

TEST(CollectiveCodedTest, NonFiniteIsSeenByTheOwner) {  // I10
  const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  for (const char* policy : kPolicies) {
    for (const float value : values) {
      for (const int tensor : {0, 8}) {  // "scalar" and "large"
        Rig rig({.nodes = 3, .workers = 2, .exchange = policy});
        rig.CreateAll(Generation(1));
        rig.ReduceAll(Step(1));
        for (int node = 0; node < 3; ++node) {
          EXPECT_TRUE(rig.observer(node).total.finite);
        }
        const layout::TensorPlace& place = rig.layout().places()[tensor];
        const int64_t at = tensor == 0 ? 0 : 777;
        std::memcpy(rig.gradients(2, 1).data() + place.gradient_offset + 4 * at,
                    &value, sizeof(value));
        rig.ReduceAll(Step(2));
        int num_not_finite = 0;
        for (int node = 0; node < 3; ++node) {
          num_not_finite += rig.observer(node).total.finite ? 0 : 1;
        }
        EXPECT_EQ(num_not_finite, 1) << policy;
        EXPECT_FALSE(std::isfinite(rig.Means()[tensor][at]));
      }
    }
  }
}

TEST(CollectiveCodedTest, EveryNodePublishesTheDecodedForm) {  // I2, I25
  for (const std::string policy : kPolicies) {
    for (const int nodes : {2, 3, 5}) {
      for (const uint64_t bucket_bytes : {1, 50'000, 1 << 22}) {
        Rig rig({.nodes = nodes,
                 .bucket_bytes = bucket_bytes,
                 .buckets_in_flight = 2,
                 .seed = 9,
                 .exchange = policy});
        if (!rig.plan().quantizes_weights()) continue;
        rig.CreateAll(Generation(1));
        const std::vector<std::byte> before = rig.weights(0);
        for (int64_t step = 1; step <= 2; ++step) {
          rig.StartPublishAll(Step(step));
          rig.Settle();
          const std::vector<std::byte> expected =
              ExpectedWeights(rig, policy, nodes, step, before);
          for (int node = 0; node < nodes; ++node) {
            EXPECT_EQ(rig.weights(node), expected)
                << policy << " on " << nodes << " nodes";
            std::vector<int> published = rig.observer(node).published;
            std::ranges::sort(published);
            ASSERT_EQ(published.size(), rig.layout().buckets().size());
            EXPECT_EQ(std::ranges::adjacent_find(published), published.end());
            rig.observer(node).published.clear();
          }
        }
      }
    }
  }
}

// The control of the one above: what a node publishes is not its master.
TEST(CollectiveCodedTest, TheDecodedFormIsNotTheCastOfTheMaster) {
  Rig rig({.nodes = 2, .exchange = "zeropp"});
  EXPECT_NE(ExpectedWeights(rig, "zeropp", 2, 1, rig.weights(0)),
            ExpectedWeights(rig, "exact", 2, 1, rig.weights(0)));
}

TEST(CollectiveCodedTest, BytesAreThoseOfTheFormula) {  // I21, T0 (c)
  for (const char* policy : kPolicies) {
    for (const Shape& shape : kShapes) {
      Rig rig(
          {.nodes = shape.nodes, .workers = shape.workers, .exchange = policy});
      rig.CreateAll(Generation(1));
      for (int64_t step = 1; step <= 3; ++step) {
        rig.ReduceAll(Step(step));
        rig.StartPublishAll(Step(step));
        rig.Settle();
      }
      uint64_t sent = 0;
      for (int node = 0; node < shape.nodes; ++node) {
        const ByteCounts counts = rig.collective(node)->byte_counts();
        EXPECT_EQ(counts.payload_sent,
                  3 * rig.plan().PerStep(rig.layout(), NodeRank(node)).total())
            << policy << " on " << shape.nodes << "x" << shape.workers;
        EXPECT_GE(counts.wire_sent, counts.payload_sent);
        EXPECT_EQ(
            counts.wire_sent,
            shape.nodes == 1 ? 0 : rig.links().sent_bytes(NodeRank(node)));
        sent += counts.payload_sent;
      }
      EXPECT_EQ(sent == 0, shape.nodes == 1);
      if (rig.plan().quantizes_gradients()) {
        EXPECT_EQ(sent, 3 * (shape.nodes - 1) *
                            rig.plan().Model(rig.layout()).total());
      }
    }
  }
}

TEST(CollectiveCodedTest, OneNodeIsExact) {  // I21
  std::optional<std::vector<std::vector<float>>> means;
  for (const char* policy : {"exact", "zeropp", kPolicies[1]}) {
    Rig rig({.workers = 4, .exchange = policy});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    if (!means.has_value()) means = rig.Means();
    EXPECT_TRUE(SameBits(rig.Means(), *means));
    EXPECT_EQ(rig.collective(0)->byte_counts().payload_sent, 0);
    EXPECT_TRUE(rig.Errors(layout::Path::kGradients, Step(1)).empty());
  }
}

TEST(CollectiveCodedTest, TheErrorOfWhatWasSentIsMeasured) {  // I21
  const auto measure = [](const std::string& policy, layout::Path path) {
    Rig rig({.nodes = 2, .exchange = policy});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    rig.StartPublishAll(Step(1));
    rig.Settle();
    return rig.RelativeError(path, Step(1));
  };
  const auto gradients = [&](const std::string& policy) {
    return measure(policy, layout::Path::kGradients);
  };
  EXPECT_EQ(gradients("exact"), 0);
  // Uniform noise: step / sqrt(12) over 1 / sqrt(3), step = 1/7 and 1/127.
  const double int4 = gradients("gradients.codec=int4");
  EXPECT_NEAR(int4, 0.5 / 7, 0.1 / 7);
  EXPECT_NEAR(gradients("gradients.codec=int8"), 0.5 / 127, 0.1 / 127);
  EXPECT_GT(gradients("gradients.codec=int4 gradients.rounding=stochastic"),
            1.2 * int4);
  // Each path for itself.
  EXPECT_EQ(measure("gradients.codec=int4", layout::Path::kWeights), 0);
  EXPECT_EQ(gradients("weights.codec=int8"), 0);
  EXPECT_GT(measure("weights.codec=int8", layout::Path::kWeights), 1e-4);
  EXPECT_EQ(gradients("gradients.codec=int4 metering.one_in=0"), 0);
}

// The figure of every tensor by other arithmetic: whole tensors, one cell at a
// time, plain sums; from what all nodes contribute.
TEST(CollectiveCodedTest, ErrorsAreThoseOfWholeTensors) {
  const std::string policy =
      "gradients.codec=int4 gradients.range=clip16 metering.one_in=2";
  Rig rig({.nodes = 3, .workers = 2, .exchange = policy});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(5));
  const auto sums = rig.Errors(layout::Path::kGradients, Step(5));
  const auto metered = rig.plan().metered(layout::Path::kGradients);
  ASSERT_EQ(sums.size(), metered.size());
  ASSERT_GT(sums.size(), 2u);
  const kernels::Kernels& k = kernels::Reference();
  uint64_t all_clipped = 0;
  for (size_t m = 0; m < metered.size(); ++m) {
    const int t = metered[m].value();
    const layout::TensorSpec& spec = rig.layout().tensors()[t];
    const int64_t count = rig.layout().places()[t].num_elements;
    const int64_t cells = (count + 2047) / 2048;
    const kernels::CodecSpec block =
        rig.plan().codecs(metered[m]).gradients.block;
    double error2 = 0, value2 = 0;
    uint64_t sampled = 0, clipped = 0;
    for (int node = 0; node < 3; ++node) {
      std::vector<std::vector<std::byte>> gradients;
      std::vector<const void*> sources;
      for (int w = 0; w < 2; ++w) {
        gradients.push_back(NoiseGradient()(spec, count, t, 2 * node + w));
        sources.push_back(gradients.back().data());
      }
      std::vector<float> sum(count), back(count);
      k.tree_sum(spec.dtype, sources, count, sum.data());
      std::vector<uint8_t> bytes(kernels::EncodedBytes(block, count));
      k.encode(block, 0, 0, count, sum.data(), bytes.data());
      k.decode(block, count, bytes.data(), back.data());
      for (int64_t e = 0; e < count; ++e) {
        if (cells > 1 && e / 2048 % 2 != 1) continue;  // step 5
        ++sampled;
        error2 += std::pow(double{back[e]} - sum[e], 2);
        value2 += std::pow(double{sum[e]}, 2);
        float scale;
        std::memcpy(&scale, bytes.data() + e / block.block * 4, 4);
        // The largest code, and half a step or more is missing.
        const bool is_largest = back[e] > 6.5f * scale;
        if (is_largest && sum[e] - back[e] >= 0.5f * scale) ++clipped;
      }
    }
    EXPECT_EQ(sums[m].sampled, sampled) << spec.name;
    EXPECT_EQ(sums[m].clipped, clipped) << spec.name;
    EXPECT_NEAR(sums[m].Relative(), std::sqrt(error2 / value2), 1e-12)
        << spec.name;
    all_clipped += clipped;
  }
  EXPECT_GT(all_clipped, 0u);
}

// I9: no cut, no order and no delay changes a bit of a figure; another step
// looks elsewhere (the control).
TEST(CollectiveCodedTest, ErrorsDoNotDependOnCuts) {
  const auto measure = [](uint64_t bucket_bytes, uint64_t chunk_bytes,
                          uint64_t seed, int64_t step) {
    Rig rig({.nodes = 3,
             .workers = 2,
             .bucket_bytes = bucket_bytes,
             .chunk_bytes = chunk_bytes,
             .seed = seed,
             .exchange = "weights.codec=int8 gradients.codec=int4 "
                         "metering.one_in=3"});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(step));
    rig.StartPublishAll(Step(step));
    rig.Settle();
    return std::pair(rig.Errors(layout::Path::kGradients, Step(step)),
                     rig.Errors(layout::Path::kWeights, Step(step)));
  };
  const auto one = measure(40'000, 16'384, 1, 1);
  EXPECT_EQ(measure(1, 1, 2, 1), one);
  EXPECT_EQ(measure(4 << 20, 256 << 10, 3, 1), one);
  EXPECT_NE(measure(40'000, 16'384, 1, 2), one);
}

// Other codecs from one step to the next: bits, bytes and errors are those of
// a job that had them from the start. Nodes change at different times; whoever
// is early waits.
TEST(CollectiveCodedTest, CodecsChangeBetweenSteps) {  // I21, I25
  const std::string base =
      "weights.codec=int4 gradients.codec=int4 max_relative_error=0.5";
  for (const uint64_t seed : {1, 2, 3}) {
    Rig rig({.nodes = 3, .workers = 2, .seed = seed, .exchange = base});
    rig.CreateAll(Generation(1));
    const uint64_t bytes = rig.device().private_bytes_in_use();
    rig.ReduceAll(Step(1));
    rig.StartPublishAll(Step(1));
    rig.Settle();
    std::vector<uint64_t> sent;
    for (int node = 0; node < 3; ++node) {
      sent.push_back(rig.collective(node)->byte_counts().payload_sent);
    }
    // Every second tensor gets one codec wider, every third all there is.
    std::vector<layout::CodecChange> changes;
    std::string wide = base;
    for (const layout::Path path : layout::kPaths) {
      for (const TensorId tensor : rig.plan().metered(path)) {
        const int t = tensor.value();
        if (t % 2 != 0 && t % 3 != 0) continue;
        const layout::CodecId to =
            t % 3 == 0 ? layout::CodecId::kNone : layout::CodecId::kInt8;
        changes.push_back({path, tensor, to});
        if (path == layout::Path::kGradients) continue;
        wide += " override:" + rig.layout().tensor(tensor).name + "=" +
                std::string(layout::Name(to));
      }
    }
    ASSERT_GT(changes.size(), 4u);
    const auto revise = [&](int node) {
      EXPECT_THAT(rig.collective(node)->Revise(changes), base::IsOk());
      for (const layout::Bucket& bucket : rig.layout().buckets()) {
        rig.collective(node)->StartReduce(bucket.id, Step(2));
      }
    };
    const size_t reduced = rig.observer(0).reduced.size();
    revise(0);
    revise(2);
    rig.Settle();  // node 1 still has what was before
    EXPECT_LT(rig.observer(0).reduced.size(),
              reduced + rig.layout().buckets().size());
    revise(1);
    rig.Settle();
    EXPECT_EQ(rig.observer(0).reduced.size(),
              reduced + rig.layout().buckets().size());
    EXPECT_TRUE(SameBits(
        rig.Means(),
        WholeTensors(rig.layout(), wide, NoiseGradient(), {3, 2}, 2).means));
    const std::vector<std::byte> before = rig.weights(0);
    rig.StartPublishAll(Step(2));
    rig.Settle();
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(rig.weights(node), ExpectedWeights(rig, wide, 3, 2, before));
      // One step by the old formula, one by that of what is in force.
      const layout::ExchangePlan narrow(*layout::ParsePolicy(base),
                                        rig.layout());
      const layout::ExchangePlan other(*layout::ParsePolicy(wide),
                                       rig.layout());
      EXPECT_EQ(sent[node],
                narrow.PerStep(rig.layout(), NodeRank(node)).total());
      EXPECT_EQ(rig.collective(node)->byte_counts().payload_sent - sent[node],
                other.PerStep(rig.layout(), NodeRank(node)).total());
      EXPECT_EQ(rig.plan().PerStep(rig.layout(), NodeRank(node)),
                other.PerStep(rig.layout(), NodeRank(node)));
    }
    EXPECT_EQ(rig.device().private_bytes_in_use(), bytes);
    EXPECT_TRUE(rig.observer(1).failures.empty());
  }
}

// What the next narrower codec would cost is measured beside the one in force.
TEST(CollectiveCodedTest, TheNarrowerCodecIsTriedOnTheSample) {
  Rig rig(
      {.nodes = 2, .exchange = "gradients.codec=int4 max_relative_error=0.5"});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  const auto narrow = rig.Errors(layout::Path::kGradients, Step(1));
  EXPECT_EQ(narrow[0].narrower_error2, kernels::ExactSum());
  const TensorId tensor = rig.plan().metered(layout::Path::kGradients)[0];
  rig.OnEachNode([&](Collective* collective) {
    EXPECT_THAT(collective->Revise({{{layout::Path::kGradients, tensor,
                                      layout::CodecId::kInt8}}}),
                base::IsOk());
    EXPECT_EQ(collective->num_wider(layout::Path::kGradients), 1);
  });
  rig.ReduceAll(Step(1));
  const auto wide = rig.Errors(layout::Path::kGradients, Step(1));
  EXPECT_EQ(wide[0].narrower_error2, narrow[0].error2);
  EXPECT_LT(wide[0].Relative(), narrow[0].Relative() / 10);
  EXPECT_EQ(wide[1], narrow[1]);
}

// I27: what a peer's commit may say.
TEST(CollectiveCodedTest, CodecsThatDoNotFitThePlanAreRefused) {
  Rig rig(
      {.nodes = 2, .exchange = "gradients.codec=int4 max_relative_error=0.5"});
  rig.CreateAll(Generation(1));
  EXPECT_THAT(rig.collective(0)->Revise({{{layout::Path::kWeights, TensorId(0),
                                           layout::CodecId::kInt8}}}),
              base::StatusIs(absl::StatusCode::kDataLoss, "does not quantize"));
  rig.ReduceAll(Step(1));  // nothing has changed
}

TEST(CollectiveCodedTest, TwoRunsOfOneSeedAreTheSame) {  // I25
  uint64_t hashes[2];
  for (uint64_t& hash : hashes) {
    Rig rig({.nodes = 3, .workers = 2, .seed = 5, .exchange = "zeropp"});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    rig.StartPublishAll(Step(1));
    rig.Settle();
    hash = rig.world().trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(CollectiveCodedTest, ReductionOfOneStepOverlapsPublishingOfAnother) {
  Rig rig({.nodes = 3, .workers = 2, .exchange = "zeropp"});
  rig.CreateAll(Generation(1));
  const std::vector<std::byte> before = rig.weights(0);
  rig.StartPublishAll(Step(1));
  rig.ReduceAll(Step(2));
  EXPECT_EQ(rig.weights(2), ExpectedWeights(rig, "zeropp", 3, 1, before));
  EXPECT_TRUE(SameBits(
      rig.Means(),
      WholeTensors(rig.layout(), "zeropp", NoiseGradient(), {3, 2}).means));
}

TEST(CollectiveCodedTest, APeerMayGoAtAnyInstant) {  // I23
  int num_failures = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rig rig({.nodes = 3, .workers = 2, .seed = seed, .exchange = "zeropp"});
    rig.CreateAll(Generation(1));
    rig.StartReduceAll(Step(1));
    rig.StartPublishAll(Step(1));
    for (uint64_t i = 0; i < seed * 8; ++i) rig.world().Step();
    rig.Kill(1);
    rig.Settle();  // the observer checks what follows a failure
    for (const int node : {0, 2}) {
      EXPECT_LE(rig.observer(node).failures.size(), 1u) << "seed " << seed;
      num_failures += rig.observer(node).failures.size();
    }
    rig.CancelAll();
  }
  EXPECT_GT(num_failures, 0);
}

TEST(CollectiveCodedTest, AfterCancelMemoryIsTheCallersAgain) {  // I13, I19
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const int nodes = 2 + seed % 2;
    Rig rig({.nodes = nodes, .workers = 2, .seed = seed, .exchange = "zeropp"});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    const auto means = rig.Means();
    const std::vector<std::byte> before = rig.weights(0);
    rig.StartReduceAll(Step(2));
    rig.StartPublishAll(Step(2));
    for (uint64_t i = 0; i < seed * 4; ++i) rig.world().Step();
    rig.CancelAll();  // the observer checks that no report follows
    for (int node = 0; node < nodes; ++node) {
      std::ranges::fill(rig.state_gradient(node), 7.0f);
      std::ranges::fill(rig.weights(node), std::byte{7});
      rig.collective(node)->StartReduce(BucketId(0), Step(3));  // ignored
      rig.collective(node)->StartPublish(BucketId(0), Step(3));
    }
    rig.Settle();
    for (int node = 0; node < nodes; ++node) {
      EXPECT_TRUE(std::ranges::all_of(rig.state_gradient(node),
                                      [](float x) { return x == 7; }));
      EXPECT_TRUE(std::ranges::all_of(
          rig.weights(node), [](std::byte x) { return x == std::byte{7}; }));
      rig.weights(node) = before;
    }
    // The step comes again in the next generation, with the same bits.
    rig.CreateAll(Generation(2));
    rig.ReduceAll(Step(2));
    EXPECT_EQ(rig.Means(), means) << "seed " << seed;
    rig.StartPublishAll(Step(2));
    rig.Settle();
    EXPECT_EQ(rig.weights(nodes - 1),
              ExpectedWeights(rig, "zeropp", nodes, 2, before));
  }
}

TEST(CollectiveCodedTest, WindowsBoundTheMemory) {  // I23
  Rig rig({.nodes = 2,
           .workers = 2,
           .bucket_bytes = 1,
           .buckets_in_flight = 2,
           .exchange = "zeropp"});
  rig.CreateAll(Generation(1));
  const uint64_t bytes = rig.device().private_bytes_in_use();
  // Node 1 never begins: node 0 waits, with no more memory.
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    rig.collective(0)->StartReduce(bucket.id, Step(1));
    rig.collective(0)->StartPublish(bucket.id, Step(1));
  }
  rig.Settle();
  EXPECT_TRUE(rig.observer(0).reduced.empty());
  EXPECT_LT(rig.observer(0).published.size(), rig.layout().buckets().size());
  EXPECT_EQ(rig.device().private_bytes_in_use(), bytes);
}

TEST(CollectiveCodedTest, QuantizedWeightsNeedMasters) {
  Rig rig({.nodes = 2, .workers = 2, .exchange = "zeropp"});
  Parts parts = rig.PartsOf(0);
  parts.master = {};
  EXPECT_THAT(Collective::Create(parts, Generation(1)).status(),
              base::StatusIs(absl::StatusCode::kInvalidArgument, "masters"));
}

}  // namespace
}  // namespace ballast::collective
