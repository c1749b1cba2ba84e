#include "server/transport/routed/routed_transport.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/routed/link_probe.h"
#include "server/transport/transport_conformance.h"

namespace ballast::transport {
namespace {

class RoutedCluster final : public TestCluster {
 public:
  RoutedCluster(int num_nodes, Algorithm algorithm, const LinkFaults& faults,
                uint64_t seed = 1)
      : world_(seed), links_(&world_, seed, faults), network_(&links_) {
    links_.ShareRate(&world_);
    for (int i = 0; i < num_nodes; ++i) {
      Node& node = nodes_[i];
      node.process = std::make_unique<base::SimProcess>(
          &world_, "node " + std::to_string(i));
      node.inner = network_.AddNode(NodeRank(i), node.process.get()).value();
      node.routed = std::make_unique<RoutedTransport>(
          node.inner.get(), num_nodes,
          [this, algorithm](Pattern, int count, uint64_t) {
            last_count_ = count;
            return algorithm;
          });
    }
  }

  RoutedTransport* node(int rank) override { return nodes_[rank].routed.get(); }
  void Kill(int rank) override { nodes_.erase(rank); }
  void Settle() override { EXPECT_TRUE(world_.RunUntilIdle()); }

  LinkModel& links() { return links_; }
  int num_nodes() const { return static_cast<int>(nodes_.size()); }
  int last_count() const { return last_count_; }  // of nodes that exchange
  base::SimExecutor& world() { return world_; }

 private:
  struct Node {
    std::unique_ptr<base::SimProcess> process;
    std::unique_ptr<Transport> inner;
    std::unique_ptr<RoutedTransport> routed;
  };
  base::SimExecutor world_;
  LinkModel links_;
  InprocNetwork network_;
  std::map<int, Node> nodes_;
  int last_count_ = 0;
};

// What has no pattern passes through, as every transport must do.
INSTANTIATE_TEST_SUITE_P(Routed, TransportConformance,
                         ::testing::Values([](int num_nodes) {
                           return std::unique_ptr<TestCluster>(
                               std::make_unique<RoutedCluster>(
                                   num_nodes, Algorithm::kBruck, LinkFaults()));
                         }));

// Uneven, and some of nothing.
size_t SizeOf(Pattern pattern, int from, int to) {
  if (pattern == Pattern::kGather) return from * 37 % 5 * 11;
  return (from * 7 + to * 3) % 4 * 9;
}

std::byte ByteOf(int from, int to, int64_t step, size_t i) {
  return std::byte(from * 31 + to * 17 + step * 5 + i);
}

// One exchange of every node of a cluster, or of some: of `step` apart, from
// node `first` on.
class Everyone {
 public:
  Everyone(RoutedCluster* cluster, int num_nodes, Pattern pattern,
           int first = 0, int step = 1, BucketId bucket = {},
           std::optional<int> turn = {}, Generation generation = Generation(1))
      : num_nodes_(num_nodes), pattern_(pattern), sides_(num_nodes) {
    const auto rank_of = [=](int index) {
      return NodeRank(first + index * step);
    };
    for (int self = 0; self < num_nodes; ++self) {
      Side& side = sides_[self];
      ExchangeSpec spec;
      spec.generation = generation;
      spec.phase = 3;
      spec.bucket = bucket;
      spec.turn = turn;
      spec.pattern = pattern;
      spec.part_bytes = [=](NodeRank from, NodeRank to) {
        return SizeOf(pattern, (from.value() - first) / step,
                      (to.value() - first) / step);
      };
      const bool is_all = num_nodes == cluster->num_nodes();
      for (int i = 0; i < num_nodes && !is_all; ++i) {
        spec.nodes.push_back(rank_of(i));
      }
      side.out.resize(num_nodes);
      side.in.resize(num_nodes);
      for (int peer = 0; peer < num_nodes; ++peer) {
        if (peer == self) continue;
        side.in[peer].resize(SizeOf(pattern, peer, self));
        if (!side.in[peer].empty()) {
          spec.receives.push_back({rank_of(peer), side.in[peer]});
        }
        std::vector<std::byte>& out = OutOf(self, peer);
        out.resize(SizeOf(pattern, self, peer));
        if (!out.empty()) spec.sends.push_back({rank_of(peer), out});
      }
      auto exchange =
          cluster->node(rank_of(self).value())->Prepare(spec, &side.observer);
      EXPECT_THAT(exchange, base::IsOk());
      side.exchange = *std::move(exchange);
    }
  }

  void Post(int64_t step) {
    for (int self = 0; self < num_nodes_; ++self) {
      for (int peer = 0; peer < num_nodes_; ++peer) {
        std::vector<std::byte>& out = OutOf(self, peer);
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = ByteOf(self, TargetOf(peer), step, i);
        }
      }
      ASSERT_THAT(sides_[self].exchange->Post(Step(step)), base::IsOk());
    }
  }

  void Cancel() {
    for (Side& side : sides_) side.exchange->Cancel();
  }
  void Release(int node) { sides_[node].exchange.reset(); }

  void ExpectDelivered(int64_t step) {
    for (int self = 0; self < num_nodes_; ++self) {
      const auto& calls = sides_[self].observer.calls;
      ASSERT_FALSE(calls.empty()) << "node " << self;
      EXPECT_THAT(calls.back().status, base::IsOk());
      EXPECT_EQ(calls.back().step, Step(step));
      EXPECT_FALSE(sides_[self].exchange->is_posted());
      EXPECT_TRUE(HasAll(self, step)) << "node " << self;
    }
  }
  bool HasAll(int self, int64_t step) const {
    for (int peer = 0; peer < num_nodes_; ++peer) {
      const std::vector<std::byte>& in = sides_[self].in[peer];
      for (size_t i = 0; i < in.size(); ++i) {
        if (in[i] != ByteOf(peer, TargetOf(self), step, i)) return false;
      }
    }
    return true;
  }
  size_t NumCalls() const {
    size_t calls = 0;
    for (const Side& side : sides_) calls += side.observer.calls.size();
    return calls;
  }
  std::vector<std::byte>& in(int self, int peer) {
    return sides_[self].in[peer];
  }
  const RecordingObserver& observer(int node) const {
    return sides_[node].observer;
  }
  uint64_t payload_sent() const {
    uint64_t bytes = 0;
    for (const Side& side : sides_) {
      bytes += side.exchange->counters().payload_sent;
    }
    return bytes;
  }

 private:
  struct Side {
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    RecordingObserver observer;
    std::unique_ptr<Exchange> exchange;
  };
  // A gather has one block for all.
  std::vector<std::byte>& OutOf(int self, int peer) {
    return sides_[self].out[pattern_ == Pattern::kGather ? 0 : peer];
  }
  int TargetOf(int peer) const {
    return pattern_ == Pattern::kGather ? 0 : peer;
  }

  const int num_nodes_;
  const Pattern pattern_;
  std::vector<Side> sides_;
};

class RoutedTransportTest
    : public ::testing::TestWithParam<std::tuple<Algorithm, Pattern>> {
 protected:
  Algorithm algorithm() const { return std::get<0>(GetParam()); }
  Pattern pattern() const { return std::get<1>(GetParam()); }
};

// I4, I7, I25: the same bytes in the same places by every algorithm, for any
// number of nodes and any sizes, step after step, on links that lose parts.
TEST_P(RoutedTransportTest, EveryPartArrives) {
  for (int nodes = 2; nodes <= 9; ++nodes) {
    if (!Does(algorithm(), pattern(), nodes)) continue;
    SCOPED_TRACE(nodes);
    RoutedCluster cluster(nodes, algorithm(), {.loss = 0.2, .duplicate = 0.2},
                          nodes);
    Everyone all(&cluster, nodes, pattern());
    for (int64_t step = 1; step <= 3; ++step) {
      all.Post(step);
      EXPECT_EQ(all.NumCalls(), (step - 1) * nodes) << "never inside Post";
      cluster.Settle();
      EXPECT_EQ(all.NumCalls(), step * nodes);
      all.ExpectDelivered(step);
    }
    EXPECT_EQ(
        cluster.node(0)->counts(pattern())[static_cast<size_t>(algorithm())],
        1);
  }
}

// Some of a cluster's nodes exchange as if there were no others: neighbours,
// and every second one at the same time.
TEST_P(RoutedTransportTest, SomeNodesExchangeAmongThemselves) {
  for (int count = 2; count <= 5; ++count) {
    if (!Does(algorithm(), pattern(), count)) continue;
    for (const int step : {1, 2}) {
      RoutedCluster cluster(2 * count, algorithm(),
                            {.loss = 0.2, .duplicate = 0.2}, count);
      const int second = step == 1 ? count : 1;
      Everyone first(&cluster, count, pattern(), 0, step);
      Everyone other(&cluster, count, pattern(), second, step);
      for (int64_t s = 1; s <= 2; ++s) {
        first.Post(s);
        other.Post(s);
        cluster.Settle();
        first.ExpectDelivered(s);
        other.ExpectDelivered(s);
      }
      EXPECT_EQ(cluster.last_count(), count);
    }
  }
}

TEST_P(RoutedTransportTest, ANodeThatIsNoneOfThemIsRefused) {
  RoutedCluster cluster(4, algorithm(), LinkFaults());
  ExchangeSpec spec;
  spec.pattern = pattern();
  spec.nodes = {NodeRank(1), NodeRank(2)};
  RecordingObserver observer;
  EXPECT_THAT(cluster.node(3)->Prepare(spec, &observer),
              base::StatusIs(absl::StatusCode::kInvalidArgument,
                             "node 3 is none of the 2"));
}

// The control of the test above: bytes in another place are seen.
TEST_P(RoutedTransportTest, SwappedPartsAreSeen) {
  RoutedCluster cluster(8, algorithm(), LinkFaults());
  Everyone all(&cluster, 8, pattern());
  all.Post(1);
  cluster.Settle();
  ASSERT_TRUE(all.HasAll(3, 1));
  int swapped = -1;
  for (int peer = 0; peer < 8 && swapped < 0; ++peer) {
    for (int other = 0; other < peer; ++other) {
      if (all.in(3, peer).size() == all.in(3, other).size() &&
          !all.in(3, peer).empty()) {
        std::swap(all.in(3, peer), all.in(3, other));
        swapped = peer;
        break;
      }
    }
  }
  ASSERT_GE(swapped, 0);
  EXPECT_FALSE(all.HasAll(3, 1));
}

// Gathers, ring to Bruck, move what direct moves: blocks are forwarded instead
// of sent by their origin. Bruck's delivery moves more, as the model says.
TEST_P(RoutedTransportTest, MovesNoMoreThanItMust) {
  RoutedCluster cluster(8, algorithm(), LinkFaults());
  Everyone all(&cluster, 8, pattern());
  all.Post(1);
  cluster.Settle();
  RoutedCluster direct_cluster(8, Algorithm::kDirect, LinkFaults());
  Everyone direct(&direct_cluster, 8, pattern());
  direct.Post(1);
  direct_cluster.Settle();
  if (algorithm() == Algorithm::kBruck && pattern() == Pattern::kDeliver) {
    EXPECT_GT(all.payload_sent(), direct.payload_sent());
    EXPECT_LT(all.payload_sent(), 2 * direct.payload_sent());
  } else {
    EXPECT_EQ(all.payload_sent(), direct.payload_sent());
  }
}

TEST_P(RoutedTransportTest, AllMayCancelAndPostAgain) {
  for (int events = 0; events < 60; events += 7) {
    SCOPED_TRACE(events);
    RoutedCluster cluster(8, algorithm(), LinkFaults());
    Everyone all(&cluster, 8, pattern());
    all.Post(1);
    for (int i = 0; i < events; ++i) cluster.world().Step();
    const size_t done = all.NumCalls();
    all.Cancel();
    cluster.Settle();
    EXPECT_EQ(all.NumCalls(), done) << "a cancelled exchange reported";
    all.Post(2);
    cluster.Settle();
    all.ExpectDelivered(2);
  }
}

// I23: a death is an error at whoever waits for the dead, wherever it strikes.
TEST_P(RoutedTransportTest, ADeadNodeIsReportedByThoseWhoWaitForIt) {
  RoutedCluster cluster(8, algorithm(), LinkFaults());
  Everyone all(&cluster, 8, pattern());
  all.Post(1);
  all.Release(5);
  cluster.Kill(5);
  cluster.Settle();
  int unavailable = 0;
  for (int node = 0; node < 8; ++node) {
    for (const auto& call : all.observer(node).calls) {
      if (call.status.ok()) continue;
      EXPECT_THAT(call.status, base::StatusIs(absl::StatusCode::kUnavailable));
      ++unavailable;
    }
  }
  EXPECT_GT(unavailable, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, RoutedTransportTest,
    ::testing::Values(std::make_tuple(Algorithm::kDirect, Pattern::kGather),
                      std::make_tuple(Algorithm::kRing, Pattern::kGather),
                      std::make_tuple(Algorithm::kDoubling, Pattern::kGather),
                      std::make_tuple(Algorithm::kBruck, Pattern::kGather),
                      std::make_tuple(Algorithm::kDirect, Pattern::kDeliver),
                      std::make_tuple(Algorithm::kPairwise, Pattern::kDeliver),
                      std::make_tuple(Algorithm::kBruck, Pattern::kDeliver)),
    [](const auto& info) {
      return std::string(Name(std::get<0>(info.param))) +
             (std::get<1>(info.param) == Pattern::kGather ? "Gather"
                                                          : "Deliver");
    });

// Exchanges of several buckets that take turns: their memory is that of the
// longest messages; without turns each has its own, and nothing is shared.
TEST(RoutedTransportTest, ExchangesThatTakeTurnsShareTheirMemory) {
  for (const Pattern pattern : {Pattern::kGather, Pattern::kDeliver}) {
    RoutedCluster cluster(5, Algorithm::kBruck, {});
    const auto bytes = [&] { return cluster.node(0)->shared_bytes(); };
    std::vector<std::unique_ptr<Everyone>> all;
    const auto add = [&](int bucket, std::optional<int> turn) {
      all.push_back(std::make_unique<Everyone>(&cluster, 5, pattern, 0, 1,
                                               BucketId(bucket), turn));
    };
    add(0, std::nullopt);
    EXPECT_EQ(bytes(), 0);
    add(1, 0);
    const uint64_t of_one = bytes();
    EXPECT_GT(of_one, 0);
    for (int bucket = 2; bucket < 9; ++bucket) add(bucket, 0);
    EXPECT_EQ(bytes(), of_one);
    add(9, 1);
    EXPECT_EQ(bytes(), 2 * of_one);
    for (int64_t step = 1; step <= 2; ++step) {
      for (const auto& everyone : all) {
        everyone->Post(step);
        cluster.Settle();
        everyone->ExpectDelivered(step);
      }
    }
    // Of two turns and of none at the same time.
    for (const size_t i : {0, 3, 9}) all[i]->Post(3);
    cluster.Settle();
    for (const size_t i : {0, 3, 9}) all[i]->ExpectDelivered(3);
  }
}

// The control: what takes turns and does not spoils what it shares.
TEST(RoutedTransportTest, TurnsThatAreNotTakenAreSeen) {
  RoutedCluster cluster(5, Algorithm::kBruck, {});
  Everyone one(&cluster, 5, Pattern::kDeliver, 0, 1, BucketId(0), 0);
  Everyone other(&cluster, 5, Pattern::kDeliver, 0, 1, BucketId(1), 0);
  one.Post(1);
  other.Post(2);
  cluster.Settle();
  bool has_all = true;
  for (int node = 0; node < 5; ++node) {
    has_all = has_all && one.HasAll(node, 1) && other.HasAll(node, 2);
  }
  EXPECT_FALSE(has_all);
}

TEST(RoutedTransportTest, AnotherGenerationSharesNothingWithTheLast) {
  RoutedCluster cluster(5, Algorithm::kBruck, {});
  Everyone last(&cluster, 5, Pattern::kDeliver, 0, 1, BucketId(0), 0);
  const uint64_t bytes = cluster.node(0)->shared_bytes();
  Everyone next(&cluster, 5, Pattern::kDeliver, 0, 1, BucketId(0), 0,
                Generation(2));
  EXPECT_EQ(cluster.node(0)->shared_bytes(), bytes);
  last.Post(1);
  next.Post(2);
  cluster.Settle();
  last.ExpectDelivered(1);
  next.ExpectDelivered(2);
}

TEST(RoutedTransportTest, APhaseMustLeaveRoomForTheRounds) {
  RoutedCluster cluster(4, Algorithm::kBruck, LinkFaults());
  RecordingObserver observer;
  ExchangeSpec spec;
  spec.phase = 1 << 24;
  spec.pattern = Pattern::kGather;
  EXPECT_THAT(cluster.node(0)->Prepare(spec, &observer),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
}

// What the probes of five nodes find.
std::vector<LinkCost> Measured(const LinkFaults& faults) {
  RoutedCluster cluster(5, Algorithm::kDirect, faults);
  std::vector<LinkCost> costs;
  std::vector<std::unique_ptr<LinkProbe>> probes(5);
  for (int node = 0; node < 5; ++node) {
    auto probe = LinkProbe::Start(
        {.transport = cluster.node(node),
         .clock = &cluster.world(),
         .num_nodes = 5,
         .generation = Generation(0),
         .phase = 6},
        [&costs, &probe = probes[node]](absl::StatusOr<LinkCost> cost) {
          probe.reset();  // it may be released here
          ASSERT_THAT(cost, base::IsOk());
          costs.push_back(*cost);
        });
    EXPECT_THAT(probe, base::IsOk());
    EXPECT_TRUE(costs.empty()) << "never inside Start";
    probes[node] = *std::move(probe);
  }
  cluster.Settle();
  EXPECT_EQ(costs.size(), 5u);
  return costs;
}

LinkFaults LinksOf50MegabytesPerSecond() {
  LinkFaults faults;
  faults.min_delay = faults.max_delay = absl::Microseconds(100);
  faults.bytes_per_second = 50e6;
  return faults;
}

TEST(LinkProbeTest, MeasuresTheLinks) {
  for (const LinkCost& cost : Measured(LinksOf50MegabytesPerSecond())) {
    // The simulation adds up to 20 us to every event.
    EXPECT_NEAR(cost.latency + cost.per_message, 130e-6, 50e-6);
    EXPECT_NEAR(cost.per_byte, 1 / 50e6, 0.1 / 50e6);
  }
}

// A shaped link's burst is not its rate; what is longer than the probe is.
TEST(LinkProbeTest, ABurstIsNotTakenForTheRate) {
  LinkFaults faults = LinksOf50MegabytesPerSecond();
  faults.burst_bytes = 512 << 10;
  for (const LinkCost& cost : Measured(faults)) {
    EXPECT_NEAR(cost.per_byte, 1 / 50e6, 0.1 / 50e6);
  }
  faults.burst_bytes = 64 << 20;
  for (const LinkCost& cost : Measured(faults)) {
    EXPECT_LT(cost.per_byte, 0.5 / 50e6);
  }
}

TEST(LinkProbeTest, ADeadNodeEndsIt) {
  RoutedCluster cluster(3, Algorithm::kDirect, LinkFaults());
  absl::Status why;
  auto probe = LinkProbe::Start(
      {.transport = cluster.node(0), .clock = &cluster.world(), .num_nodes = 3},
      [&why](absl::StatusOr<LinkCost> cost) { why = cost.status(); });
  ASSERT_THAT(probe, base::IsOk());
  cluster.Kill(1);
  cluster.Settle();
  EXPECT_THAT(why, base::StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace ballast::transport
