#include "server/transport/inproc/inproc_transport.h"

#include <map>
#include <string>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/transport_conformance.h"

namespace ballast::transport {
namespace {

class InprocCluster final : public TestCluster {
 public:
  InprocCluster(int num_nodes, uint64_t seed, const LinkFaults& faults)
      : world_(seed), links_(&world_, seed, faults), network_(&links_) {
    for (int i = 0; i < num_nodes; ++i) {
      Node& node = nodes_[i];
      node.process = std::make_unique<base::SimProcess>(
          &world_, "node " + std::to_string(i));
      node.transport =
          network_.AddNode(NodeRank(i), node.process.get()).value();
    }
  }

  Transport* node(int rank) override { return nodes_[rank].transport.get(); }
  void Kill(int rank) override { nodes_.erase(rank); }
  void Settle() override { EXPECT_TRUE(world_.RunUntilIdle()); }

  LinkModel& links() { return links_; }
  base::SimExecutor& world() { return world_; }
  InprocNetwork& network() { return network_; }

 private:
  struct Node {
    std::unique_ptr<base::SimProcess> process;
    std::unique_ptr<Transport> transport;  // goes first
  };
  base::SimExecutor world_;
  LinkModel links_;
  InprocNetwork network_;
  std::map<int, Node> nodes_;
};

INSTANTIATE_TEST_SUITE_P(Sound, TransportConformance,
                         ::testing::Values([](int num_nodes) {
                           return std::unique_ptr<TestCluster>(
                               std::make_unique<InprocCluster>(num_nodes, 1,
                                                               LinkFaults()));
                         }));

INSTANTIATE_TEST_SUITE_P(
    Faulty, TransportConformance, ::testing::Values([](int num_nodes) {
      return std::unique_ptr<TestCluster>(std::make_unique<InprocCluster>(
          num_nodes, 2, LinkFaults{.loss = 0.5, .duplicate = 0.5}));
    }));

struct Pair {
  explicit Pair(InprocCluster* cluster) : cluster(cluster) {
    for (int i = 0; i < 2; ++i) {
      ExchangeSpec spec;
      spec.generation = Generation(1);
      spec.sends = {{NodeRank(1 - i), out[i]}};
      spec.receives = {{NodeRank(1 - i), in[i]}};
      exchanges[i] = cluster->node(i)->Prepare(spec, &observers[i]).value();
    }
  }
  void Post(int64_t step) {
    for (auto& exchange : exchanges) {
      ASSERT_THAT(exchange->Post(Step(step)), base::IsOk());
    }
  }
  InprocCluster* const cluster;
  std::vector<std::byte> out[2] = {std::vector<std::byte>(100, std::byte{1}),
                                   std::vector<std::byte>(100, std::byte{2})};
  std::vector<std::byte> in[2] = {std::vector<std::byte>(100),
                                  std::vector<std::byte>(100)};
  RecordingObserver observers[2];
  std::unique_ptr<Exchange> exchanges[2];
};

// I21: the counters of exchange and link agree with the formula.
TEST(InprocTransportTest, CountsHeadersOnTheWire) {
  InprocCluster cluster(2, 1, LinkFaults());
  Pair pair(&cluster);
  pair.Post(1);
  cluster.Settle();
  const uint64_t wire = 100 + InprocNetwork::kHeaderBytes;
  EXPECT_EQ(pair.exchanges[0]->counters().wire_sent, wire);
  EXPECT_EQ(pair.exchanges[0]->counters().wire_received, wire);
  EXPECT_EQ(cluster.links().link_bytes(NodeRank(0), NodeRank(1)), wire);
  EXPECT_EQ(cluster.links().sent_bytes(NodeRank(1)), wire);
}

// I19: many seeds of loss and repetition; every step arrives once.
TEST(InprocTransportTest, LossAndRepetitionChangeNothingButTheWire) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    InprocCluster cluster(2, seed, {.loss = 0.3, .duplicate = 0.3});
    Pair pair(&cluster);
    for (int64_t step = 1; step <= 20; ++step) {
      pair.out[0].assign(100, std::byte(step));
      pair.Post(step);
      cluster.Settle();
      ASSERT_EQ(pair.observers[1].calls.size(), step) << "seed " << seed;
      ASSERT_EQ(pair.in[1], pair.out[0]) << "seed " << seed;
    }
    EXPECT_EQ(pair.exchanges[0]->counters().payload_sent, 2000u);
    EXPECT_GT(pair.exchanges[0]->counters().wire_sent,
              20 * (100 + InprocNetwork::kHeaderBytes));
  }
}

TEST(InprocTransportTest, ACutLinkWaitsUntilItIsHealed) {
  InprocCluster cluster(3, 1, LinkFaults());
  Pair pair(&cluster);
  cluster.links().Partition(NodeRank(0), NodeRank(1));
  pair.Post(1);
  cluster.Settle();
  EXPECT_TRUE(pair.observers[0].calls.empty());
  EXPECT_EQ(cluster.links().sent_bytes(NodeRank(0)), 0u);
  cluster.links().Heal(NodeRank(0), NodeRank(1));
  cluster.Settle();
  EXPECT_EQ(pair.observers[0].calls.size(), 1u);
}

TEST(InprocTransportTest, ACutUnderWayHoldsTheBytesBack) {
  InprocCluster cluster(2, 1, LinkFaults());
  Pair pair(&cluster);
  pair.Post(1);
  cluster.links().Partition(NodeRank(0), NodeRank(1));
  cluster.Settle();
  EXPECT_EQ(pair.in[1], std::vector<std::byte>(100));
  cluster.links().HealAll();
  cluster.Settle();
  EXPECT_EQ(pair.in[1], pair.out[0]);
}

TEST(InprocTransportTest, ANodeComesBackAsAnother) {
  InprocCluster cluster(2, 1, LinkFaults());
  EXPECT_THAT(cluster.network().AddNode(NodeRank(1), &cluster.world()),
              base::StatusIs(absl::StatusCode::kAlreadyExists));
  cluster.Kill(1);
  EXPECT_THAT(cluster.network().AddNode(NodeRank(1), &cluster.world()),
              base::IsOk());
}

TEST(InprocTransportTest, OneSeedIsOneRun) {
  uint64_t hashes[2];
  for (uint64_t& hash : hashes) {
    InprocCluster cluster(2, 5, {.loss = 0.3, .duplicate = 0.3});
    Pair pair(&cluster);
    for (int64_t step = 1; step <= 5; ++step) {
      pair.Post(step);
      cluster.Settle();
    }
    hash = cluster.world().trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace ballast::transport
