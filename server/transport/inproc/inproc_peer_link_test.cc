#include "server/transport/inproc/inproc_peer_link.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"

namespace ballast::transport {
namespace {

class Inbox final : public PeerLinkObserver {
 public:
  void OnFrame(NodeRank from, std::string frame) override {
    last_from = from;
    frames.push_back(std::move(frame));
  }
  NodeRank last_from;
  std::vector<std::string> frames;
};

class InprocPeerLinkTest : public ::testing::Test {
 protected:
  void Make(const LinkFaults& faults, uint64_t seed = 1) {
    b_.reset();
    a_.reset();
    network_.reset();
    links_.reset();
    world_ = std::make_unique<base::SimExecutor>(seed);
    links_ = std::make_unique<LinkModel>(world_.get(), seed, faults);
    network_ = std::make_unique<InprocPeerNetwork>(links_.get());
    a_ = network_->AddNode(NodeRank(0), world_.get()).value();
    b_ = network_->AddNode(NodeRank(1), world_.get()).value();
    inbox_ = Inbox();
    b_->SetObserver(&inbox_);
  }
  void SendMany(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_THAT(a_->Send(NodeRank(1), std::to_string(i)), base::IsOk());
    }
    EXPECT_TRUE(world_->RunUntilIdle());
  }

  Inbox inbox_;
  std::unique_ptr<base::SimExecutor> world_;
  std::unique_ptr<LinkModel> links_;
  std::unique_ptr<InprocPeerNetwork> network_;
  std::unique_ptr<PeerLink> a_;
  std::unique_ptr<PeerLink> b_;
};

TEST_F(InprocPeerLinkTest, KeepsTheOrderOnASoundNetwork) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Make(LinkFaults(), seed);
    SendMany(100);
    ASSERT_EQ(inbox_.frames.size(), 100u);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(inbox_.frames[i], std::to_string(i));
    }
    EXPECT_EQ(inbox_.last_from, NodeRank(0));
  }
}

TEST_F(InprocPeerLinkTest, LosesRepeatsAndReorders) {
  Make({.loss = 0.2});
  SendMany(1000);
  EXPECT_LT(inbox_.frames.size(), 900u);
  EXPECT_GT(inbox_.frames.size(), 700u);
  Make({.duplicate = 0.2});
  SendMany(1000);
  EXPECT_GT(inbox_.frames.size(), 1100u);
  Make({.reorder = 0.2});
  SendMany(1000);
  EXPECT_EQ(inbox_.frames.size(), 1000u);
  EXPECT_FALSE(std::ranges::is_sorted(
      inbox_.frames, {}, [](const std::string& s) { return std::stoi(s); }));
}

TEST_F(InprocPeerLinkTest, ACutLinkLosesFrames) {
  Make(LinkFaults());
  ASSERT_THAT(a_->Send(NodeRank(1), "under way"), base::IsOk());
  links_->Partition(NodeRank(0), NodeRank(1));
  SendMany(3);
  links_->HealAll();
  EXPECT_TRUE(world_->RunUntilIdle());
  EXPECT_TRUE(inbox_.frames.empty());
  SendMany(1);
  EXPECT_EQ(inbox_.frames.size(), 1u);
}

TEST_F(InprocPeerLinkTest, AFilterDropsWhatATestChooses) {
  Make(LinkFaults());
  network_->SetFilter([](NodeRank, NodeRank, const std::string& frame) {
    return frame == "1";
  });
  SendMany(3);
  EXPECT_EQ(inbox_.frames, (std::vector<std::string>{"0", "2"}));
}

TEST_F(InprocPeerLinkTest, DeliversToOneselfButNotInsideSend) {
  Make({.loss = 1});
  ASSERT_THAT(b_->Send(NodeRank(1), "me"), base::IsOk());
  EXPECT_TRUE(inbox_.frames.empty());
  EXPECT_TRUE(world_->RunUntilIdle());
  EXPECT_EQ(inbox_.frames, std::vector<std::string>{"me"});
}

TEST_F(InprocPeerLinkTest, FramesForADeadNodeAreLost) {
  Make(LinkFaults());
  ASSERT_THAT(a_->Send(NodeRank(1), "late"), base::IsOk());
  b_.reset();
  SendMany(1);
  b_ = network_->AddNode(NodeRank(1), world_.get()).value();
  b_->SetObserver(&inbox_);
  SendMany(1);
  EXPECT_EQ(inbox_.frames.size(), 1u);
}

TEST_F(InprocPeerLinkTest, RefusesHugeFrames) {
  Make(LinkFaults());
  EXPECT_THAT(a_->Send(NodeRank(1), std::string(kMaxFrameBytes + 1, 'x')),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(a_->Send(NodeRank(1), std::string(kMaxFrameBytes, 'x')),
              base::IsOk());
}

}  // namespace
}  // namespace ballast::transport
