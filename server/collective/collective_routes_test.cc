// Exchange algorithms change no bit, of no path (I9, I25): whatever ways parts
// take, and where sums are added on their way, owners and nodes get the same.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "server/base/status_matchers.h"
#include "server/collective/collective_rig.h"
#include "server/transport/routed/routed_transport.h"
#include "server/transport/routed/routes.h"
#include "server/transport/transport.h"

namespace ballast::collective {
namespace {

using transport::Algorithm;
using transport::Pattern;

struct Ways {
  Algorithm gather = Algorithm::kDirect;
  Algorithm reduce = Algorithm::kDirect;
};

struct Shape {
  int nodes;
  int workers;
};

constexpr Shape kShapes[] = {{2, 2}, {3, 2}, {4, 1}, {4, 2}, {5, 3}, {8, 1}};

constexpr Algorithm kGathers[] = {Algorithm::kDirect, Algorithm::kRing,
                                  Algorithm::kDoubling, Algorithm::kBruck};
constexpr Algorithm kReductions[] = {Algorithm::kDirect, Algorithm::kPairwise,
                                     Algorithm::kBruck, Algorithm::kHalving};

struct Outcome {
  std::vector<std::vector<float>> means;
  kernels::ExactSum norm;
  std::vector<std::vector<std::byte>> weights;  // by node
  uint64_t payload = 0;                         // of all nodes
  uint64_t wire = 0;
};

RigOptions OptionsOf(const Shape& shape, const std::string& policy,
                     const Ways& ways, uint64_t seed) {
  RigOptions options;
  options.nodes = shape.nodes;
  options.workers = shape.workers;
  options.exchange = policy;
  options.seed = seed;
  options.batch_bytes = static_cast<int64_t>(1 + seed % 3 * 20'000);
  options.faults = {.max_delay = absl::Milliseconds(1), .loss = 0.1};
  options.halves = ways.reduce == Algorithm::kHalving;
  options.wrap_transport = [nodes = shape.nodes, ways](
                               NodeRank, transport::Transport* inner)
      -> std::unique_ptr<transport::Transport> {
    return std::make_unique<transport::RoutedTransport>(
        inner, nodes, [ways](Pattern pattern, int num_nodes, uint64_t) {
          if (pattern == Pattern::kGather) {
            return Does(ways.gather, pattern, num_nodes) ? ways.gather
                                                         : Algorithm::kBruck;
          }
          return ways.reduce == Algorithm::kHalving ? Algorithm::kDirect
                                                    : ways.reduce;
        });
  };
  return options;
}

Outcome TwoSteps(const RigOptions& options) {
  Rig rig(options);
  rig.CreateAll(Generation(1));
  Outcome outcome;
  for (int64_t step = 1; step <= 2; ++step) {
    rig.ReduceAll(Step(step));
    rig.StartPublishAll(Step(step));
    rig.Settle();
  }
  outcome.means = rig.Means();
  outcome.norm = rig.Norm();
  for (int node = 0; node < options.nodes; ++node) {
    EXPECT_TRUE(rig.observer(node).failures.empty());
    outcome.weights.push_back(rig.weights(node));
    const ByteCounts counts = rig.collective(node)->byte_counts();
    outcome.payload += counts.payload_sent;
    outcome.wire += counts.wire_sent;
  }
  return outcome;
}

bool SameBits(const Outcome& a, const Outcome& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() ||
            std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
  };
  return std::ranges::equal(a.means, b.means, same) &&
         std::ranges::equal(a.weights, b.weights, same) && a.norm == b.norm;
}

class RoutesTest
    : public ::testing::TestWithParam<std::tuple<Shape, std::string>> {
 protected:
  Outcome With(const Ways& ways, uint64_t seed) const {
    return TwoSteps(OptionsOf(std::get<0>(GetParam()), std::get<1>(GetParam()),
                              ways, seed));
  }
};

TEST_P(RoutesTest, EveryAlgorithmGivesTheSameBits) {
  const int nodes = std::get<0>(GetParam()).nodes;
  const Outcome direct = With({}, 1);
  uint64_t seed = 1;
  for (const Algorithm gather : kGathers) {
    if (!Does(gather, Pattern::kGather, nodes)) continue;
    EXPECT_TRUE(SameBits(With({.gather = gather}, ++seed), direct))
        << "gather " << Name(gather);
  }
  for (const Algorithm reduce : kReductions) {
    const Outcome outcome = With({.reduce = reduce}, ++seed);
    EXPECT_TRUE(SameBits(outcome, direct)) << "reduce " << Name(reduce);
    // Over all nodes the formula's bytes, also where sums are halved.
    EXPECT_EQ(outcome.payload, direct.payload) << "reduce " << Name(reduce);
    EXPECT_GE(outcome.wire, outcome.payload);
  }
}

// Differences and random bits, of small tensors too.
constexpr char kStochasticDelta4[] =
    "delta4 gradients.rounding=stochastic seed=3 override:cube=int4 "
    "override:seven=int4";

INSTANTIATE_TEST_SUITE_P(
    Shapes, RoutesTest,
    ::testing::Combine(::testing::ValuesIn(kShapes),
                       ::testing::Values("exact", "zeropp", kStochasticDelta4)),
    [](const auto& info) {
      const Shape& shape = std::get<0>(info.param);
      const std::string& policy = std::get<1>(info.param);
      return policy.substr(0, policy.find(' ')) + "_" +
             std::to_string(shape.nodes) + "x" + std::to_string(shape.workers);
    });

// The control: those bits are random ones, and other seeds give others.
TEST(RoutesControlTest, AnotherSeedOfRoundingGivesOtherBits) {
  const Shape shape{4, 2};
  const std::string policy = kStochasticDelta4;
  const auto with = [&](const std::string& text) {
    return TwoSteps(OptionsOf(shape, text, {}, 1));
  };
  EXPECT_TRUE(SameBits(with(policy), with(policy)));
  std::string other = policy;
  other.replace(other.find("seed=3"), 6, "seed=4");
  EXPECT_FALSE(SameBits(with(policy), with(other)));
}

// Calls all turns the first.
class OneTurn final : public transport::Transport {
 public:
  explicit OneTurn(std::unique_ptr<transport::Transport> inner)
      : inner_(std::move(inner)) {}
  const transport::Capabilities& capabilities() const override {
    return inner_->capabilities();
  }
  NodeRank self() const override { return inner_->self(); }
  absl::StatusOr<std::unique_ptr<transport::Exchange>> Prepare(
      const transport::ExchangeSpec& spec,
      transport::ExchangeObserver* observer) override {
    transport::ExchangeSpec same = spec;
    if (same.turn.has_value()) same.turn = 0;
    return inner_->Prepare(same, observer);
  }

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

// Another control: buckets of other windows do not take turns, and what they
// would share is spoilt.
TEST(RoutesControlTest, OneTurnForAllWindowsGivesOtherBits) {
  const Shape shape{4, 2};
  for (const std::string policy : {"exact", "zeropp"}) {
    const Outcome direct = TwoSteps(OptionsOf(shape, policy, {}, 1));
    int num_spoilt = 0;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      RigOptions options = OptionsOf(
          shape, policy,
          {.gather = Algorithm::kBruck, .reduce = Algorithm::kBruck}, seed);
      EXPECT_TRUE(SameBits(TwoSteps(options), direct));
      options.wrap_transport = [wrap = options.wrap_transport](
                                   NodeRank node, transport::Transport* inner)
          -> std::unique_ptr<transport::Transport> {
        return std::make_unique<OneTurn>(wrap(node, inner));
      };
      num_spoilt += !SameBits(TwoSteps(options), direct);
    }
    EXPECT_GT(num_spoilt, 0) << policy;
  }
}

// Sums at distances 2^k in any other order are not the canonical tree's: what
// halving must keep. Here nodes 1 and 2 have changed places.
TEST(HalvingTest, AnotherOrderOfNodesGivesOtherBits) {
  const Shape shape{4, 1};
  const Outcome halved =
      TwoSteps(OptionsOf(shape, "exact", {.reduce = Algorithm::kHalving}, 1));
  RigOptions options =
      OptionsOf(shape, "exact", {.reduce = Algorithm::kHalving}, 1);
  options.gradient = [noise = NoiseGradient()](const layout::TensorSpec& tensor,
                                               int64_t count, int index,
                                               int rank) {
    constexpr int kSwapped[] = {0, 2, 1, 3};
    return noise(tensor, count, index, kSwapped[rank]);
  };
  EXPECT_FALSE(SameBits(TwoSteps(options), halved));
}

// Where the ranks of a node are not one subtree, sums cannot be halved, and
// are not: the bytes of several sums per node are on the wire.
TEST(HalvingTest, OnlyWhereEveryNodeIsOneSubtree) {
  Rig rig(OptionsOf({4, 3}, "exact", {.reduce = Algorithm::kHalving}, 1));
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  uint64_t payload = 0;
  for (int node = 0; node < 4; ++node) {
    payload += rig.collective(node)->byte_counts().payload_sent;
  }
  uint64_t formula = 0;
  for (int node = 0; node < 4; ++node) {
    formula += rig.plan().PerStep(rig.layout(), NodeRank(node)).gradients;
  }
  EXPECT_EQ(payload, formula);
}

}  // namespace
}  // namespace ballast::collective
