#include "server/membership/membership.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/exact_sum.h"
#include "server/base/random.h"
#include "server/base/sim_executor.h"

namespace ballast::membership {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Carries frames between the nodes of a test; loses and repeats them.
class Network {
 public:
  Network(base::SimExecutor* world, double loss, double repeat)
      : world_(world), loss_(loss), repeat_(repeat) {}

  void Send(NodeRank from, NodeRank to, const v1::PeerFrame& frame) {
    if (Draw(loss_)) return;
    for (int copies = Draw(repeat_) ? 2 : 1; copies > 0; --copies) {
      world_->PostAfter(absl::Microseconds(world_->random().Below(500)),
                        [this, from, to, frame] {
                          if (nodes[to.value()] == nullptr) return;
                          nodes[to.value()]->OnFrame(from, frame);
                        });
    }
  }

  std::vector<Membership*> nodes;

 private:
  bool Draw(double probability) {
    return world_->random().Below(1000) < probability * 1000;
  }

  base::SimExecutor* const world_;
  const double loss_;
  const double repeat_;
};

class Node final : public MembershipObserver, public FramePort {
 public:
  Node(base::SimExecutor* world, Network* network, int rank, int num_nodes)
      : network_(network), rank_(rank) {
    membership = Membership::Create({.job = "job",
                                     .node = NodeRank(rank),
                                     .num_nodes = num_nodes,
                                     .incarnation = Incarnation(100 + rank),
                                     .optimizer = kernels::OptimizerKind::kSgd,
                                     .join_timeout = absl::Seconds(60),
                                     .vote_timeout = absl::InfiniteDuration(),
                                     .peer_timeout = absl::Seconds(30),
                                     .clock = world,
                                     .executor = world,
                                     .link = num_nodes > 1 ? this : nullptr,
                                     .observer = this});
    network->nodes.push_back(membership.get());
  }
  ~Node() override { network_->nodes[rank_] = nullptr; }

  void Join(int num_nodes) {
    v1::Join join;
    join.set_says_ready(says_ready);
    join.set_num_nodes(num_nodes);
    join.set_local_world_size(1);
    membership->Join(join);
  }
  void Vote(int64_t step, double lr = 1, uint64_t digest = 0, int round = 0) {
    v1::Vote vote;
    vote.set_step(step);
    vote.set_published_digest(digest);
    vote.set_heal_round(round);
    const kernels::ExactSum zero;
    for (uint64_t limb : zero.limbs()) {
      vote.add_norm2_limbs(limb);
    }
    vote.add_groups()->set_lr(lr);
    membership->CastVote(vote);
  }

  void Send(NodeRank to, const v1::PeerFrame& frame) override {
    network_->Send(NodeRank(rank_), to, frame);
  }
  void OnView(Generation generation, const v1::View& view) override {
    log.push_back(
        absl::StrCat("view ", generation.value(), "/", view.open_step()));
    if (on_open && !view.awaits_ready()) on_open(view.open_step());
  }
  void OnStart() override {
    log.push_back("start");
    if (on_open) on_open(1);
  }
  void OnCommit(const v1::Commit& commit) override {
    log.push_back(absl::StrCat("commit ", commit.step()));
    if (on_open) on_open(commit.step() + 1);
  }
  void OnAbort(const v1::Abort& abort) override {
    log.push_back(
        absl::StrCat("abort ", abort.step(), " -> ", abort.next_generation()));
  }
  void OnHeal(const v1::Heal& heal) override {
    log.push_back(absl::StrCat("heal ", heal.step(), " ", heal.round()));
    if (on_heal) on_heal(heal);
  }
  void OnEnded(absl::Status why) override {
    log.push_back(absl::StrCat("ended: ", why.message()));
  }
  void OnLost(absl::Status why) override {
    log.push_back(absl::StrCat("lost: ", why.message()));
  }

  std::unique_ptr<Membership> membership;
  std::vector<std::string> log;
  bool says_ready = false;
  std::function<void(int64_t step)> on_open;
  std::function<void(const v1::Heal& heal)> on_heal;

 private:
  Network* const network_;
  const int rank_;
};

class MembershipTest : public ::testing::Test {
 protected:
  void Make(int num_nodes, uint64_t seed = 1, double loss = 0,
            double repeat = 0) {
    nodes_.clear();
    world_ = std::make_unique<base::SimExecutor>(seed);
    network_ = std::make_unique<Network>(world_.get(), loss, repeat);
    for (int n = 0; n < num_nodes; ++n) {
      nodes_.push_back(
          std::make_unique<Node>(world_.get(), network_.get(), n, num_nodes));
    }
  }
  void JoinAll() {
    for (auto& node : nodes_) node->Join(static_cast<int>(nodes_.size()));
  }
  void Run(absl::Duration duration) { world_->RunFor(duration); }

  std::unique_ptr<base::SimExecutor> world_;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(MembershipTest, OneNodeGoesThroughItsOwnCoordinator) {
  Make(1);
  nodes_[0]->Join(1);
  EXPECT_TRUE(nodes_[0]->log.empty());  // never from within the call
  Run(absl::Seconds(1));
  nodes_[0]->Vote(1);
  Run(absl::Seconds(1));
  nodes_[0]->membership->Leave(absl::OkStatus());
  Run(absl::Seconds(1));
  EXPECT_THAT(nodes_[0]->log, ElementsAre("view 1/1", "commit 1", "ended: "));
  EXPECT_TRUE(world_->RunUntilIdle());  // no timer with nobody to wait for
}

TEST_F(MembershipTest, AbortOpensTheStepAgain) {
  Make(2);
  JoinAll();
  Run(absl::Seconds(1));
  nodes_[0]->Vote(1, 0.5);
  nodes_[1]->Vote(1, 0.25);
  Run(absl::Seconds(1));
  nodes_[0]->Vote(1);
  nodes_[1]->Vote(1);
  Run(absl::Seconds(1));
  for (auto& node : nodes_) {
    EXPECT_THAT(node->log, ElementsAre("view 1/1", "abort 1 -> 2", "commit 1"));
    EXPECT_EQ(node->membership->generation(), Generation(2));
  }
}

TEST_F(MembershipTest, EveryNodeHearsTheSameWhateverTheNetworkDoes) {  // I19
  constexpr int kSteps = 20;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Make(3, seed, /*loss=*/0.2, /*repeat=*/0.3);
    for (auto& node : nodes_) {
      Node* n = node.get();
      n->on_open = [n](int64_t step) {
        if (step <= kSteps) n->Vote(step);
      };
    }
    JoinAll();
    Run(absl::Minutes(10));
    std::vector<std::string> expected = {"view 1/1"};
    for (int s = 1; s <= kSteps; ++s) {
      expected.push_back(absl::StrCat("commit ", s));
    }
    for (auto& node : nodes_) EXPECT_EQ(node->log, expected) << seed;
  }
}

// Node 1 shows other weights at steps 2 and 4 until its second round.
// The slowest node is ready long after the others may be silent.
TEST_F(MembershipTest, AllStartTogetherWhateverTheNetworkDoes) {  // I19, I23
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Make(3, seed, /*loss=*/0.3, /*repeat=*/0.3);
    int num_ready = 0;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      Node* const node = nodes_[n].get();
      node->says_ready = true;
      node->on_open = [&, node](int64_t step) {
        EXPECT_EQ(num_ready, 3);
        if (step == 1) node->Vote(1);
      };
      world_->PostAfter(absl::Seconds(10 + 40 * n), [&, node] {
        EXPECT_THAT(node->log, ElementsAre("view 1/1"));
        ++num_ready;
        node->membership->Ready();
        if (num_ready < 3) {
          EXPECT_THAT(node->membership->WaitingFor(),
                      HasSubstr("the first weights"));
        }
      });
    }
    JoinAll();
    world_->RunFor(absl::Minutes(3));
    for (auto& node : nodes_) {
      EXPECT_THAT(node->log, ElementsAre("view 1/1", "start", "commit 1"))
          << "seed " << seed;
    }
  }
}

TEST_F(MembershipTest, WeightsAreHealedWhateverTheNetworkDoes) {  // I2, I19
  constexpr int kSteps = 5;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Make(3, seed, /*loss=*/0.2, /*repeat=*/0.3);
    for (auto& node : nodes_) {
      Node* const n = node.get();
      const bool is_bad = n == nodes_[1].get();
      n->on_open = [n, is_bad](int64_t step) {
        if (step > kSteps) return;
        n->Vote(step, 1, is_bad && step % 2 == 0 ? 8 : 7);
      };
      n->on_heal = [this, n, is_bad](const v1::Heal& heal) {
        n->Vote(heal.step(), 1, 7, heal.round() - 1);  // a stray
        world_->PostAfter(
            absl::Seconds(world_->random().Below(9)), [n, is_bad, heal] {
              n->Vote(heal.step(), 1, is_bad && heal.round() < 2 ? 8 : 7,
                      heal.round());
            });
      };
    }
    JoinAll();
    Run(absl::Minutes(20));
    for (auto& node : nodes_) {
      EXPECT_THAT(node->log,
                  ElementsAre("view 1/1", "commit 1", "heal 2 1", "heal 2 2",
                              "commit 2", "commit 3", "heal 4 1", "heal 4 2",
                              "commit 4", "commit 5"))
          << seed;
    }
  }
}

TEST_F(MembershipTest, WeightsThatDoNotHealEndTheJob) {  // I23
  Make(2);
  for (auto& node : nodes_) {
    Node* const n = node.get();
    const uint64_t digest = n == nodes_[1].get() ? 8 : 7;
    n->on_open = [n, digest](int64_t step) { n->Vote(step, 1, digest); };
    n->on_heal = [n, digest](const v1::Heal& heal) {
      n->Vote(heal.step(), 1, digest, heal.round());
    };
  }
  JoinAll();
  Run(absl::Minutes(1));
  for (auto& node : nodes_) {
    EXPECT_THAT(node->log,
                ElementsAre("view 1/1", "heal 1 1", "heal 1 2", "heal 1 3",
                            HasSubstr("are not the same everywhere")));
  }
}

// A node that heals is waited for by name, and still a living one.
TEST_F(MembershipTest, ANodeThatHealsOnlyDelays) {
  Make(2);
  JoinAll();
  Run(absl::Seconds(1));
  nodes_[0]->Vote(1, 1, 7);
  nodes_[1]->Vote(1, 1, 8);
  Run(absl::Minutes(10));
  EXPECT_THAT(nodes_[1]->membership->WaitingFor(),
              HasSubstr("comparing its weights with their owners' before step "
                        "1 for 9m"));
  for (auto& node : nodes_) node->Vote(1, 1, 7, 1);
  Run(absl::Seconds(5));
  for (auto& node : nodes_) {
    EXPECT_THAT(node->log, ElementsAre("view 1/1", "heal 1 1", "commit 1"));
  }
}

TEST_F(MembershipTest, WithoutTheFaultsNothingIsDropped) {  // the control
  Make(3, 1, 0, 0);
  JoinAll();
  Run(absl::Seconds(10));
  for (auto& node : nodes_) EXPECT_EQ(node->membership->dropped_frames(), 0);
  Make(3, 1, 0, 1);
  JoinAll();
  Run(absl::Seconds(10));
  EXPECT_GT(nodes_[0]->membership->dropped_frames(), 0);
}

TEST_F(MembershipTest, LateNodeFindsTheCoordinatorByItself) {
  Make(2);
  nodes_[1]->Join(2);
  Run(absl::Seconds(30));
  EXPECT_THAT(nodes_[1]->membership->WaitingFor(),
              HasSubstr("node 0 has not sent a view for 30s"));
  nodes_[0]->Join(2);
  Run(absl::Seconds(5));
  EXPECT_THAT(nodes_[1]->log, ElementsAre("view 1/1"));
}

TEST_F(MembershipTest, AbsentNodeIsABoundedWait) {  // I23
  Make(2);
  nodes_[0]->Join(2);
  Run(absl::Seconds(62));
  EXPECT_THAT(nodes_[0]->log, ElementsAre("ended: node 1 did not join within "
                                          "1m"));
  Make(2);
  nodes_[1]->Join(2);
  Run(absl::Seconds(70));
  EXPECT_THAT(nodes_[1]->log,
              ElementsAre("ended: node 0 (the coordinator) did not answer "
                          "within 1m"));
}

TEST_F(MembershipTest, DeadPeerIsABoundedWait) {  // I23
  for (int dead : {0, 1}) {
    Make(2);
    JoinAll();
    Run(absl::Seconds(5));
    const int other = 1 - dead;
    nodes_[dead].reset();
    nodes_[other]->Vote(1);
    Run(absl::Minutes(1));
    ASSERT_EQ(nodes_[other]->log.size(), 2);
    EXPECT_THAT(nodes_[other]->log[1], HasSubstr(absl::StrCat("node ", dead)));
    EXPECT_THAT(nodes_[other]->log[1], HasSubstr("silent"));
  }
}

// Who has lost a link says so; this life is over everywhere, the job is not.
TEST_F(MembershipTest, ALostLinkIsToldToAll) {
  for (int loser : {0, 2}) {
    Make(3);
    JoinAll();
    Run(absl::Seconds(5));
    nodes_[loser]->membership->Relink(absl::UnavailableError("node 1 is gone"));
    Run(absl::Seconds(5));
    for (int n = 0; n < 3; ++n) {
      if (n == loser) continue;
      ASSERT_EQ(nodes_[n]->log.size(), 2);
      EXPECT_EQ(nodes_[n]->log[1],
                absl::StrCat("lost: node ", loser, " reports: node 1 is gone"));
    }
    EXPECT_EQ(nodes_[loser]->log.size(), 1);
  }
}

TEST_F(MembershipTest, SlowWorkersOnlyDelay) {
  Make(2);
  JoinAll();
  Run(absl::Hours(3));
  nodes_[0]->Vote(1);
  Run(absl::Hours(3));
  nodes_[1]->Vote(1);
  Run(absl::Seconds(5));
  for (auto& node : nodes_) {
    EXPECT_THAT(node->log, ElementsAre("view 1/1", "commit 1"));
  }
}

TEST_F(MembershipTest, LeaveReachesTheOthersThoughTheLeaverIsGone) {
  for (int leaver : {0, 1}) {
    Make(2);
    JoinAll();
    Run(absl::Seconds(1));
    nodes_[leaver]->membership->Leave(absl::UnavailableError("rank 7 died"));
    nodes_[leaver].reset();  // at once
    Run(absl::Seconds(1));
    EXPECT_THAT(nodes_[1 - leaver]->log,
                Contains(HasSubstr(absl::StrCat("ended: node ", leaver,
                                                " left the job: rank 7"))));
  }
}

TEST_F(MembershipTest, ForeignJobsAndForgedSendersAreDropped) {  // I27
  Make(2);
  JoinAll();
  Run(absl::Seconds(1));
  v1::PeerFrame frame;
  frame.set_job("other");
  frame.set_from(0);
  frame.mutable_leave()->set_text("stop");
  nodes_[1]->membership->OnFrame(NodeRank(0), frame);
  frame.set_job("job");
  frame.set_from(1);
  nodes_[1]->membership->OnFrame(NodeRank(0), frame);
  frame.set_from(0);
  frame.set_incarnation(5);
  frame.set_to_incarnation(101);
  nodes_[1]->membership->OnFrame(NodeRank(0), frame);
  frame.set_incarnation(100);
  frame.set_to_incarnation(77);  // for an earlier life of this node
  nodes_[1]->membership->OnFrame(NodeRank(0), frame);
  EXPECT_EQ(nodes_[1]->membership->dropped_frames(), 4);
  EXPECT_THAT(nodes_[1]->log, ElementsAre("view 1/1"));
}

}  // namespace
}  // namespace ballast::membership
