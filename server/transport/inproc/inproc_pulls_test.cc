#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/transport/inproc/inproc_peer_link.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/pulls_conformance.h"

namespace ballast::transport {
namespace {

class InprocPullCluster final : public PullTestCluster {
 public:
  InprocPullCluster(int num_nodes, uint64_t seed, const LinkFaults& faults)
      : world_(seed),
        links_(&world_, seed, faults),
        network_(&links_),
        frames_(&links_) {
    for (int i = 0; i < num_nodes; ++i) {
      Node& node = nodes_[i];
      node.process = std::make_unique<base::SimProcess>(
          &world_, "node " + std::to_string(i));
      node.transport =
          network_.AddNode(NodeRank(i), node.process.get()).value();
      node.link = frames_.AddNode(NodeRank(i), node.process.get()).value();
    }
  }

  Transport* transport(int rank) override {
    return nodes_[rank].transport.get();
  }
  PeerLink* link(int rank) override { return nodes_[rank].link.get(); }
  base::Executor* executor(int rank) override {
    return nodes_[rank].process.get();
  }
  void Kill(int rank) override { nodes_.erase(rank); }
  bool RunUntil(absl::FunctionRef<bool()> condition) override {
    for (int i = 0; i < 10'000 && !condition(); ++i) {
      world_.RunFor(absl::Milliseconds(1));
    }
    return condition();
  }
  void Settle() override { world_.RunFor(absl::Seconds(60)); }

  LinkModel& links() { return links_; }

 private:
  struct Node {
    std::unique_ptr<base::SimProcess> process;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<PeerLink> link;
  };
  base::SimExecutor world_;
  LinkModel links_;
  InprocNetwork network_;
  InprocPeerNetwork frames_;
  std::map<int, Node> nodes_;
};

INSTANTIATE_TEST_SUITE_P(Sound, PullsConformance,
                         ::testing::Values([](int num_nodes) {
                           return std::unique_ptr<PullTestCluster>(
                               std::make_unique<InprocPullCluster>(
                                   num_nodes, 1, LinkFaults()));
                         }));

INSTANTIATE_TEST_SUITE_P(
    Faulty, PullsConformance, ::testing::Values([](int num_nodes) {
      return std::unique_ptr<PullTestCluster>(
          std::make_unique<InprocPullCluster>(
              num_nodes, 2,
              LinkFaults{.loss = 0.4, .duplicate = 0.4, .reorder = 0.4}));
    }));

// Requests and bytes alike wait for the cable and are there once it is.
TEST(InprocPullsTest, ACutLinkDelaysAPull) {
  InprocPullCluster cluster(2, 3, LinkFaults());
  PullTestNode asker(&cluster, 0);
  PullTestNode source(&cluster, 1);
  source.serve = std::vector<std::byte>(1000, std::byte{9});
  std::vector<std::byte> into(1000);
  bool is_done = false;
  cluster.links().Partition(NodeRank(0), NodeRank(1));
  ASSERT_TRUE(asker.pulls()
                  .Pull(NodeRank(1), {.kind = PullTestNode::kKind}, into,
                        [&](const absl::Status& s) { is_done = s.ok(); })
                  .ok());
  cluster.Settle();
  EXPECT_FALSE(is_done);
  EXPECT_TRUE(source.asked.empty());
  cluster.links().HealAll();
  cluster.Settle();
  EXPECT_TRUE(is_done);
  EXPECT_EQ(into, *source.serve);
  EXPECT_GT(asker.pulls().counters().repeats, 3u);
  EXPECT_LT(asker.pulls().counters().repeats, 20u) << "they grow rare";
}

// Seeds of loss, repetition and reordering: every pull ends with its bytes,
// the source is asked once for each.
TEST(InprocPullsTest, SeedsOfLoss) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    InprocPullCluster cluster(2, seed,
                              {.loss = 0.5, .duplicate = 0.3, .reorder = 0.5});
    PullTestNode asker(&cluster, 0);
    PullTestNode source(&cluster, 1);
    source.serve = std::vector<std::byte>(500, std::byte(seed + 1));
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> into(500);
      int num_done = 0;
      ASSERT_TRUE(asker.pulls()
                      .Pull(NodeRank(1), {.kind = PullTestNode::kKind}, into,
                            [&](const absl::Status& s) {
                              EXPECT_TRUE(s.ok()) << s;
                              ++num_done;
                            })
                      .ok());
      ASSERT_TRUE(cluster.RunUntil([&] { return num_done > 0; })) << seed;
      cluster.Settle();
      EXPECT_EQ(num_done, 1);
      EXPECT_EQ(into, *source.serve);
      EXPECT_EQ(source.asked.size(), i + 1u);
    }
  }
}

}  // namespace
}  // namespace ballast::transport
