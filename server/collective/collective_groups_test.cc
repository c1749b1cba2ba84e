// Partition groups (MiCS): every group keeps all shards, and all groups get the
// same bits; with `exact` those of one group of all nodes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/status_matchers.h"
#include "server/collective/coded_testing.h"
#include "server/collective/collective_rig.h"
#include "server/collective/delta_testing.h"
#include "server/collective/published_chunks.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"
#include "server/transport/routed/routed_transport.h"
#include "server/transport/routed/routes.h"
#include "server/transport/transport.h"

namespace ballast::collective {
namespace {

using transport::Algorithm;
using transport::Pattern;

struct Grouping {
  int nodes;
  int owners;  // nodes of a group
  int workers;
};

// T37's ranks (n, p, k per node) among them: (8, 4, 4), (12, 6, 3), (16, 8, 2).
constexpr Grouping kGroupings[] = {
    {4, 2, 1}, {6, 2, 1}, {6, 3, 1}, {4, 1, 1}, {2, 1, 4},
    {4, 2, 3}, {8, 4, 2}, {6, 2, 3}, {3, 1, 3}, {8, 2, 1},
};

const char* const kPolicies[] = {
    "exact",
    "zeropp",
    "weights.codec=int4 weights.block=64 gradients.codec=int8 "
    "gradients.block=32 gradients.hadamard=32",
    "gradients.codec=int4 gradients.rounding=stochastic seed=9",
    "weights.codec=int8 gradients.codec=int4 override:cube=none "
    "override:seven=int4",
};

std::string With(const std::string& policy, int owners) {
  return absl::StrCat(policy, " partition_nodes=", owners);
}

std::string NameOf(const Grouping& g, const std::string& policy = "") {
  return absl::StrCat(g.nodes, " nodes x ", g.workers, ", ", g.owners,
                      " of a group ", policy);
}

RigOptions OptionsOf(const Grouping& g, const std::string& policy) {
  return {.nodes = g.nodes,
          .workers = g.workers,
          .exchange = With(policy, g.owners)};
}

TEST(CollectiveGroupsTest, AllGroupsReduceToTheSameBits) {  // I6, I7, I8, I15
  for (const char* policy : kPolicies) {
    for (const Grouping& g : kGroupings) {
      Rig rig(OptionsOf(g, policy));
      rig.CreateAll(Generation(1));
      for (int64_t step = 1; step <= 2; ++step) {
        rig.ReduceAll(Step(step));
        // Of `exact` the tree over all ranks, whatever the groups.
        const Expected expected =
            WholeTensors(rig.layout(), With(policy, g.owners), NoiseGradient(),
                         {g.nodes, g.workers}, step);
        for (int group = 0; group < g.nodes / g.owners; ++group) {
          EXPECT_TRUE(SameBits(rig.Means(group), expected.means))
              << NameOf(g, policy) << ", group " << group;
        }
        EXPECT_EQ(rig.Norm(), expected.norm) << NameOf(g, policy);
      }
    }
  }
}

TEST(CollectiveGroupsTest, BitsDoNotDependOnCutsOrderOrTiming) {  // I9, I25
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Grouping& g = kGroupings[seed % std::size(kGroupings)];
    const char* const policy = kPolicies[seed % 2];
    const uint64_t bucket_bytes[] = {1, 20'000, 100'000, 1 << 22};
    RigOptions options = OptionsOf(g, policy);
    options.bucket_bytes = bucket_bytes[seed / 4 % 4];
    options.chunk_bytes = seed * 3'000;
    options.buckets_in_flight = static_cast<int>(1 + seed % 5);
    options.batch_bytes = static_cast<int64_t>(1 + seed % 3 * 20'000);
    options.seed = seed;
    options.faults = {.max_delay = absl::Milliseconds(2),
                      .loss = 0.2,
                      .duplicate = 0.1,
                      .reorder = 0.2};
    Rig rig(options);
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    const Expected expected = WholeTensors(
        rig.layout(), options.exchange, NoiseGradient(), {g.nodes, g.workers});
    for (int group = 0; group < g.nodes / g.owners; ++group) {
      EXPECT_TRUE(SameBits(rig.Means(group), expected.means))
          << NameOf(g, policy) << ", seed " << seed;
    }
    EXPECT_EQ(rig.Norm(), expected.norm) << "seed " << seed;
  }
}

TEST(CollectiveGroupsTest, OneGroupOfAllNodesIsNone) {  // p = N
  for (const char* policy : kPolicies) {
    Rig all({.nodes = 4, .workers = 2, .exchange = policy});
    Rig grouped(OptionsOf({4, 4, 2}, policy));
    EXPECT_EQ(grouped.layout().digest(), all.layout().digest());
    for (Rig* const rig : {&all, &grouped}) {
      rig->CreateAll(Generation(1));
      rig->ReduceAll(Step(1));
    }
    EXPECT_TRUE(SameBits(all.Means(), grouped.Means()));
    for (int node = 0; node < 4; ++node) {
      EXPECT_EQ(grouped.collective(node)->byte_counts().payload_sent,
                all.collective(node)->byte_counts().payload_sent);
    }
  }
}

TEST(CollectiveGroupsTest, TheMeanOfOnesIsOne) {  // I6
  for (const char* policy : kPolicies) {
    for (const Grouping& g : kGroupings) {
      RigOptions options = OptionsOf(g, policy);
      options.gradient = ConstantGradient(1);
      Rig rig(options);
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const double bound = std::string(policy) == "exact" ? 0 : 2e-6;
      for (int group = 0; group < g.nodes / g.owners; ++group) {
        for (const std::vector<float>& mean : rig.Means(group)) {
          for (const float x : mean) ASSERT_NEAR(x, 1, bound) << NameOf(g);
        }
      }
    }
  }
}

// Controls: groups that are added in another order, and sums of groups that go
// to another owner, are seen.
TEST(CollectiveGroupsTest, AnotherOrderOfGroupsGivesOtherBits) {
  for (const std::string policy : {"exact", "zeropp"}) {
    const Grouping g{6, 2, 1};
    RigOptions options = OptionsOf(g, policy);
    options.gradient = [noise = NoiseGradient()](
                           const layout::TensorSpec& tensor, int64_t count,
                           int index, int rank) {
      constexpr int kSwapped[] = {2, 3, 4, 5, 0, 1};  // whole groups
      return noise(tensor, count, index, kSwapped[rank]);
    };
    Rig rig(options);
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    const Expected expected = WholeTensors(
        rig.layout(), options.exchange, NoiseGradient(), {g.nodes, g.workers});
    EXPECT_FALSE(SameBits(rig.Means(), expected.means)) << policy;
  }
}

// Receives of one phase in each other's places.
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
    if (PhaseOf(spec.phase) == phase_ && spec.receives.size() > 1) {
      std::swap(swapped.receives[0].bytes, swapped.receives[1].bytes);
    }
    return inner_->Prepare(swapped, observer);
  }

 private:
  transport::Transport* const inner_;
  const uint32_t phase_;
};

TEST(CollectiveGroupsTest, SumsOfGroupsInEachOthersPlacesAreSeen) {
  for (const std::string policy : {"exact", "zeropp"}) {
    for (const bool is_swapped : {false, true}) {
      const Grouping g{6, 2, 1};
      RigOptions options = OptionsOf(g, policy);
      options.wrap_transport = [is_swapped](NodeRank node,
                                            transport::Transport* inner)
          -> std::unique_ptr<transport::Transport> {
        if (!is_swapped || node != NodeRank(1)) return nullptr;
        return std::make_unique<SwappingTransport>(inner, kGroupsPhase);
      };
      Rig rig(options);
      rig.CreateAll(Generation(1));
      rig.ReduceAll(Step(1));
      const Expected expected =
          WholeTensors(rig.layout(), options.exchange, NoiseGradient(),
                       {g.nodes, g.workers});
      EXPECT_TRUE(SameBits(rig.Means(1), expected.means));
      EXPECT_EQ(SameBits(rig.Means(0), expected.means), !is_swapped) << policy;
    }
  }
}

TEST(CollectiveGroupsTest, NonFiniteIsSeenByTheOwnersOfAllGroups) {  // I10
  for (const char* policy : kPolicies) {
    for (const Grouping& g : {Grouping{4, 2, 2}, Grouping{3, 1, 2}}) {
      Rig rig(OptionsOf(g, policy));
      rig.CreateAll(Generation(1));
      const float value = std::numeric_limits<float>::infinity();
      const layout::TensorPlace& place = rig.layout().places()[8];
      std::memcpy(rig.gradients(g.nodes - 1, 1).data() + place.gradient_offset +
                      4 * 777,
                  &value, sizeof(value));
      rig.ReduceAll(Step(1));
      int num_not_finite = 0;
      for (int node = 0; node < g.nodes; ++node) {
        num_not_finite += rig.observer(node).total.finite ? 0 : 1;
      }
      EXPECT_EQ(num_not_finite, g.nodes / g.owners) << NameOf(g, policy);
    }
  }
}

// What crosses: by the plan for every node, over all nodes N / p (p - 1) times
// the encoded model, and N / p - 1 times its gradients for each group.
TEST(CollectiveGroupsTest, BytesAreThoseOfTheFormula) {  // I21, T37
  for (const char* policy : kPolicies) {
    for (const Grouping& g : kGroupings) {
      Rig rig(OptionsOf(g, policy));
      rig.CreateAll(Generation(1));
      for (int64_t step = 1; step <= 3; ++step) {
        rig.ReduceAll(Step(step));
        rig.StartPublishAll(Step(step));
        rig.Settle();
      }
      uint64_t sent = 0;
      for (int node = 0; node < g.nodes; ++node) {
        const ByteCounts counts = rig.collective(node)->byte_counts();
        EXPECT_EQ(counts.payload_sent,
                  3 * rig.plan().PerStep(rig.layout(), NodeRank(node)).total())
            << NameOf(g, policy);
        EXPECT_EQ(counts.wire_sent, rig.links().sent_bytes(NodeRank(node)));
        sent += counts.payload_sent;
      }
      const layout::PayloadBytes model = rig.plan().Model(rig.layout());
      const uint64_t groups = g.nodes / g.owners;
      const bool is_one_sum_each =
          std::string(policy) != "exact" || g.workers == 1;
      // Else several subtrees cross; the plan, which was compared, knows.
      if (!is_one_sum_each || (g.owners & (g.owners - 1)) != 0) continue;
      EXPECT_EQ(sent, 3 * groups *
                          ((g.owners - 1) * model.total() +
                           (groups - 1) * model.gradients))
          << NameOf(g, policy);
    }
  }
}

TEST(CollectiveGroupsTest, EveryNodePublishesTheSame) {  // I2, I25
  for (const char* policy : kPolicies) {
    for (const Grouping& g : kGroupings) {
      Rig rig(OptionsOf(g, policy));
      if (!rig.plan().quantizes_weights()) continue;
      rig.CreateAll(Generation(1));
      const std::vector<std::byte> before = rig.weights(0);
      for (int64_t step = 1; step <= 2; ++step) {
        rig.StartPublishAll(Step(step));
        rig.Settle();
        const std::vector<std::byte> expected =
            ExpectedWeights(rig, With(policy, g.owners), g.nodes, step, before);
        for (int node = 0; node < g.nodes; ++node) {
          EXPECT_EQ(rig.weights(node), expected) << NameOf(g, policy);
        }
      }
    }
  }
}

// Unquantized, an owner's bytes go to its own group only.
TEST(CollectiveGroupsTest, OwnersPublishWithinTheirGroup) {  // I7
  for (const Grouping& g : kGroupings) {
    Rig rig(OptionsOf(g, "exact"));
    rig.CreateAll(Generation(1));
    for (int node = 0; node < g.nodes; ++node) {
      std::ranges::fill(rig.weights(node), std::byte(node + 1));
    }
    rig.StartPublishAll(Step(1));
    rig.Settle();
    const layout::Topology& topology = rig.layout().topology();
    for (int node = 0; node < g.nodes; ++node) {
      for (const layout::Bucket& bucket : rig.layout().buckets()) {
        for (const layout::Shard& shard : bucket.shards) {
          for (const layout::Piece& piece : shard.pieces) {
            const size_t at =
                rig.layout().place(piece.tensor).weight_offset +
                piece.begin * SizeOf(rig.layout().tensor(piece.tensor).dtype);
            const NodeRank owner =
                topology.NodeAt(topology.GroupOf(NodeRank(node)), shard.owner);
            ASSERT_EQ(rig.weights(node)[at], std::byte(owner.value() + 1))
                << NameOf(g);
          }
        }
      }
    }
  }
}

TEST(CollectiveGroupsTest, OfWeightsThatStayHereNothingIsEncoded) {  // p = 1
  Rig rig(OptionsOf({4, 1, 1}, "delta4"));
  EXPECT_TRUE(rig.plan().quantizes_gradients());
  EXPECT_FALSE(rig.plan().quantizes_weights());
  EXPECT_FALSE(rig.plan().codes_deltas());
  for (int node = 0; node < 4; ++node) {
    EXPECT_EQ(rig.plan().PerStep(rig.layout(), NodeRank(node)).weights, 0);
  }
}

// Errors count once: each node's sums, each group's sum, the first group's
// weights, which are those of all groups.
TEST(CollectiveGroupsTest, ErrorsOfWeightsCountOnce) {
  Rig all({.nodes = 2, .exchange = "zeropp metering.one_in=1"});
  Rig grouped(OptionsOf({6, 2, 1}, "zeropp metering.one_in=1"));
  std::vector<std::vector<ErrorSums>> weights;
  for (Rig* const rig : {&all, &grouped}) {
    rig->CreateAll(Generation(1));
    rig->ReduceAll(Step(1));
    rig->StartPublishAll(Step(1));
    rig->Settle();
    weights.push_back(rig->Errors(layout::Path::kWeights, Step(1)));
    EXPECT_GT(rig->RelativeError(layout::Path::kGradients, Step(1)), 0.01);
  }
  ASSERT_EQ(weights[0].size(), weights[1].size());
  ASSERT_FALSE(weights[0].empty());
  for (size_t i = 0; i < weights[0].size(); ++i) {
    EXPECT_EQ(weights[0][i].sampled, weights[1][i].sampled);
  }
}

// Codecs that an error budget makes wider are those of both hops.
TEST(CollectiveGroupsTest, CodecsChangeBetweenSteps) {  // I21
  const std::string base =
      "weights.codec=int4 gradients.codec=int4 max_relative_error=0.5";
  for (const Grouping& g : {Grouping{6, 2, 2}, Grouping{3, 1, 2}}) {
    Rig rig(OptionsOf(g, base));
    rig.CreateAll(Generation(1));
    const uint64_t bytes = rig.device().private_bytes_in_use();
    rig.ReduceAll(Step(1));
    std::vector<layout::CodecChange> changes;
    std::string wide = With(base, g.owners);
    for (const TensorId tensor : rig.plan().metered(layout::Path::kGradients)) {
      if (tensor.value() % 2 != 0) continue;
      const layout::CodecId to = tensor.value() % 4 == 0
                                     ? layout::CodecId::kNone
                                     : layout::CodecId::kInt8;
      changes.push_back({layout::Path::kGradients, tensor, to});
      wide += " override:" + rig.layout().tensor(tensor).name + "=" +
              std::string(layout::Name(to));
    }
    ASSERT_GT(changes.size(), 2u);
    for (int node = 0; node < g.nodes; ++node) {
      EXPECT_THAT(rig.collective(node)->Revise(changes), base::IsOk());
    }
    rig.ReduceAll(Step(2));
    for (int group = 0; group < g.nodes / g.owners; ++group) {
      EXPECT_TRUE(SameBits(rig.Means(group),
                           WholeTensors(rig.layout(), wide, NoiseGradient(),
                                        {g.nodes, g.workers}, 2)
                               .means))
          << NameOf(g);
    }
    EXPECT_EQ(rig.device().private_bytes_in_use(), bytes);
  }
}

// By whatever ways parts take within a group and between groups.
TEST(CollectiveGroupsTest, EveryAlgorithmGivesTheSameBits) {
  const std::pair<Algorithm, Algorithm> ways[] = {
      {Algorithm::kDirect, Algorithm::kDirect},
      {Algorithm::kRing, Algorithm::kPairwise},
      {Algorithm::kBruck, Algorithm::kBruck},
      {Algorithm::kDoubling, Algorithm::kDirect}};
  for (const std::string policy : {"exact", "zeropp"}) {
    for (const Grouping& g :
         {Grouping{8, 4, 1}, Grouping{6, 3, 2}, Grouping{6, 1, 1}}) {
      const Expected expected = WholeTensors(
          Rig(OptionsOf(g, policy)).layout(), With(policy, g.owners),
          NoiseGradient(), {g.nodes, g.workers});
      for (const auto& [gather, reduce] : ways) {
        RigOptions options = OptionsOf(g, policy);
        options.halves = true;  // which groups do not
        options.faults = {.max_delay = absl::Milliseconds(1), .loss = 0.1};
        options.wrap_transport = [&](NodeRank, transport::Transport* inner)
            -> std::unique_ptr<transport::Transport> {
          return std::make_unique<transport::RoutedTransport>(
              inner, g.nodes,
              [gather = gather, reduce = reduce](Pattern pattern, int count,
                                                 uint64_t) {
                const Algorithm wanted =
                    pattern == Pattern::kGather ? gather : reduce;
                return Does(wanted, pattern, count) ? wanted
                                                    : Algorithm::kBruck;
              });
        };
        Rig rig(options);
        rig.CreateAll(Generation(1));
        rig.ReduceAll(Step(1));
        for (int group = 0; group < g.nodes / g.owners; ++group) {
          EXPECT_TRUE(SameBits(rig.Means(group), expected.means))
              << NameOf(g, policy) << " by " << Name(gather);
        }
        rig.StartPublishAll(Step(1));
        rig.Settle();
        for (int node = 0; node < g.nodes; ++node) {
          EXPECT_EQ(rig.observer(node).published.size(),
                    rig.layout().buckets().size());
        }
      }
    }
  }
}

TEST(CollectiveGroupsTest, APeerMayGoAtAnyInstant) {  // I23
  int num_failures = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    RigOptions options =
        OptionsOf({4, static_cast<int>(1 + seed % 2), 2}, kPolicies[seed % 3]);
    options.seed = seed;
    Rig rig(options);
    rig.CreateAll(Generation(1));
    rig.StartReduceAll(Step(1));
    for (uint64_t i = 0; i < seed * 8; ++i) rig.world().Step();
    rig.Kill(1);
    rig.Settle();  // the observer checks what follows a failure
    for (const int node : {0, 2, 3}) {
      EXPECT_LE(rig.observer(node).failures.size(), 1u) << "seed " << seed;
      num_failures += rig.observer(node).failures.size();
    }
    rig.CancelAll();
  }
  EXPECT_GT(num_failures, 0);
}

TEST(CollectiveGroupsTest, AfterCancelTheStepComesAgain) {  // I13, I19
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    RigOptions options =
        OptionsOf({4, static_cast<int>(1 + seed % 2), 2}, kPolicies[seed % 3]);
    options.seed = seed;
    Rig rig(options);
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(2));
    const auto means = rig.Means(1);
    rig.StartReduceAll(Step(3));
    for (uint64_t i = 0; i < seed * 7; ++i) rig.world().Step();
    rig.CancelAll();
    for (int node = 0; node < 4; ++node) {
      std::ranges::fill(rig.state_gradient(node), 7.0f);
    }
    rig.Settle();
    for (int node = 0; node < 4; ++node) {
      EXPECT_TRUE(std::ranges::all_of(rig.state_gradient(node),
                                      [](float x) { return x == 7; }));
    }
    rig.CreateAll(Generation(2));
    rig.ReduceAll(Step(2));
    EXPECT_TRUE(SameBits(rig.Means(1), means)) << "seed " << seed;
  }
}

// ---- Deltas: all groups keep the same published weights. ----

RigOptions Deltas(const Grouping& g) {
  RigOptions options =
      OptionsOf(g, "weights.mode=delta weights.codec=int4 weights.block=64");
  options.heals = true;
  return options;
}

void Compare(Job* job) {
  job->rig().OnEachNode([](Collective* c) { c->StartComparison(); });
  job->rig().Settle();
}

TEST(CollectiveGroupsTest, DeltasAreTheSameInAllGroups) {  // I2, I25
  for (const Grouping& g :
       {Grouping{4, 2, 1}, Grouping{6, 3, 1}, Grouping{6, 2, 1}}) {
    Job job(Deltas(g));
    for (int64_t step = 1; step <= 3; ++step) {
      job.Publish(step);
      job.ExpectSame(NameOf(g));
      for (int node = 1; node < g.nodes; ++node) {
        EXPECT_EQ(job.rig().published(node).digest(),
                  job.rig().published(0).digest());
      }
    }
    for (int node = 0; node < g.nodes; ++node) {
      EXPECT_EQ(job.rig().pulls(node).counters().asked, 0);
    }
  }
}

// A bit that changes on any node, owner or not, is healed with the bits of
// whoever has them: with groups of two every other group has the owner's.
TEST(CollectiveGroupsTest, DamageIsHealedWithAnyGroupsBits) {  // I2
  const Grouping g{4, 2, 1};
  Job job(Deltas(g));
  job.Publish(1);
  int64_t step = 1;
  for (int node = 0; node < g.nodes; ++node) {
    for (int owner = 0; owner < g.owners; ++owner) {
      const ChunkId id{BucketId(1), NodeRank(owner), 0};
      ASSERT_FALSE(
          job.rig().layout().shard(id.bucket, id.owner).chunks.empty());
      const layout::Piece& piece =
          job.rig().layout().shard(id.bucket, id.owner).chunks[0].pieces[0];
      const layout::Layout& layout = job.rig().layout();
      job.rig().weights(
          node)[layout.place(piece.tensor).weight_offset +
                piece.begin * SizeOf(layout.tensor(piece.tensor).dtype)] ^=
          std::byte{4};
      job.Publish(++step);
      job.ExpectSameBits(absl::StrCat("node ", node, " owner ", owner));
      const HealKind kind =
          node % g.owners == owner ? HealKind::kOwner : HealKind::kMember;
      EXPECT_EQ(job.rig().published(node).heals()[static_cast<size_t>(kind)],
                1u);
    }
  }
}

// Where the votes' digests differ, the first group's owner is right, for the
// owners of the other groups too.
TEST(CollectiveGroupsTest, TheFirstGroupsBitsCount) {  // I25
  const Grouping g{4, 2, 1};
  for (int node = 0; node < g.nodes; ++node) {
    Job job(Deltas(g));
    job.Publish(1);
    const ChunkId id{BucketId(1), NodeRank(1), 0};
    const layout::Layout& layout = job.rig().layout();
    const layout::Piece& piece = layout.shard(id.bucket, id.owner).pieces[0];
    job.rig().weights(
        node)[layout.place(piece.tensor).weight_offset +
              piece.begin * SizeOf(layout.tensor(piece.tensor).dtype)] ^=
        std::byte{4};
    // It takes it for what it wrote.
    job.rig().published(node).Initialize(job.rig().weights(node),
                                         WeightVersion(1));
    const std::vector<std::byte> of_first = job.rig().weights(1);
    EXPECT_NE(job.rig().published(node).digest(),
              job.rig().published((node + 1) % 4).digest());
    Compare(&job);
    for (int other = 0; other < g.nodes; ++other) {
      EXPECT_EQ(job.rig().observer(other).num_compared, 1);
      EXPECT_TRUE(job.rig().weights(other) == of_first) << "damaged " << node;
      EXPECT_EQ(job.rig().published(other).digest(),
                job.rig().published(0).digest());
    }
    if (node == 1) continue;  // the bits of the others are the wrong ones then
    job.Publish(2);
    job.ExpectSameBits("and the next version");
  }
}

}  // namespace
}  // namespace ballast::collective
