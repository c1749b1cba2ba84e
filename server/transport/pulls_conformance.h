// What pulls must do over every transport. A backend's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Inproc, PullsConformance, Values(factory));
#ifndef SERVER_TRANSPORT_PULLS_CONFORMANCE_H_
#define SERVER_TRANSPORT_PULLS_CONFORMANCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/base/status_matchers.h"
#include "server/transport/peer_link.h"
#include "server/transport/pulls.h"
#include "server/transport/transport.h"

namespace ballast::transport {

// Some nodes and what makes them go on.
class PullTestCluster {
 public:
  virtual ~PullTestCluster() = default;
  virtual Transport* transport(int rank) = 0;
  virtual PeerLink* link(int rank) = 0;
  virtual base::Executor* executor(int rank) = 0;
  // The process of that node dies; its pulls are gone already.
  virtual void Kill(int rank) = 0;
  // False if it does not become true.
  [[nodiscard]] virtual bool RunUntil(absl::FunctionRef<bool()> condition) = 0;
  // Long enough for anything that is on its way.
  virtual void Settle() = 0;
};

using PullTestClusterFactory =
    std::unique_ptr<PullTestCluster> (*)(int num_nodes);

// A node's pulls, wired to its link; what it serves is the test's.
class PullTestNode final : public PeerLinkObserver,
                           public PullFramePort,
                           public PullSource {
 public:
  static constexpr uint32_t kKind = 5;

  PullTestNode(PullTestCluster* cluster, int rank)
      : link_(cluster->link(rank)),
        pulls_(std::make_unique<Pulls>(
            Pulls::Parts{.transport = cluster->transport(rank),
                         .executor = cluster->executor(rank),
                         .frames = this,
                         .job_key = 77})) {
    link_->SetObserver(this);
    pulls_->SetSource(kKind, this);
  }
  ~PullTestNode() override {
    pulls_.reset();
    link_->SetObserver(nullptr);
  }

  void OnFrame(NodeRank from, std::string frame) override {
    v1::Pull pull;
    if (pull.ParseFromString(frame)) pulls_->OnFrame(from, pull);
  }
  absl::Status SendPull(NodeRank to, const v1::Pull& frame) override {
    return link_->Send(to, frame.SerializeAsString());
  }
  void OnPull(NodeRank from, const PullKey& key, PullReply reply) override {
    asked.emplace_back(from, key);
    if (serve.has_value()) {
      return std::move(reply).Send(*serve, [this](const absl::Status& status) {
        sent.push_back(status);
      });
    }
    if (!refuse.ok()) return std::move(reply).Refuse(refuse);
    waiting.push_back(std::move(reply));
  }

  Pulls& pulls() { return *pulls_; }
  PeerLink& link() { return *link_; }

  // Neither: the reply is kept.
  std::optional<std::vector<std::byte>> serve;
  absl::Status refuse;
  std::vector<std::pair<NodeRank, PullKey>> asked;
  std::vector<PullReply> waiting;
  std::vector<absl::Status> sent;

 private:
  PeerLink* const link_;
  std::unique_ptr<Pulls> pulls_;
};

// One pull with memory of its own.
struct TestPull {
  std::vector<std::byte> into;
  std::optional<PullId> id;
  std::vector<absl::Status> done;
};

class PullsConformance
    : public ::testing::TestWithParam<PullTestClusterFactory> {
 protected:
  static constexpr size_t kBytes = 10000;  // more than one chunk of any backend
  static constexpr PullKey kKey{.generation = Generation(3),
                                .version = WeightVersion(12),
                                .bucket = BucketId(4),
                                .owner = NodeRank(2),
                                .kind = PullTestNode::kKind,
                                .chunk = 9};

  PullsConformance() {
    for (int i = 0; i < 3; ++i) {
      nodes_.push_back(std::make_unique<PullTestNode>(cluster_.get(), i));
    }
  }
  ~PullsConformance() override {
    nodes_.clear();  // before the transports
  }

  static std::vector<std::byte> Filled(int value, size_t size = kBytes) {
    return std::vector<std::byte>(size, std::byte(value));
  }
  PullTestNode& node(int rank) { return *nodes_[rank]; }

  std::unique_ptr<TestPull> Pull(int asker, int from, size_t size = kBytes,
                                 const PullKey& key = kKey) {
    auto pull = std::make_unique<TestPull>();
    pull->into = Filled(0, size);
    auto id = node(asker).pulls().Pull(
        NodeRank(from), key, pull->into,
        [to = pull.get()](const absl::Status& s) { to->done.push_back(s); });
    EXPECT_THAT(id, base::IsOk());
    EXPECT_TRUE(pull->done.empty()) << "never inside Pull";
    if (id.ok()) pull->id = *id;
    return pull;
  }
  testing::AssertionResult Ends(const TestPull& pull) {
    if (!cluster_->RunUntil([&] { return !pull.done.empty(); })) {
      return testing::AssertionFailure() << "the pull does not end";
    }
    if (pull.done.size() != 1) {
      return testing::AssertionFailure() << pull.done.size() << " ends";
    }
    return testing::AssertionSuccess();
  }

  std::unique_ptr<PullTestCluster> cluster_ = GetParam()(3);
  std::vector<std::unique_ptr<PullTestNode>> nodes_;
};

TEST_P(PullsConformance, FillsWhatTheSourceSends) {
  // I4: empty ones too.
  for (const size_t size : {size_t{0}, size_t{1}, kBytes, 20 * kBytes + 7}) {
    node(1).serve = Filled(50, size);
    const auto pull = Pull(0, 1, size);
    ASSERT_TRUE(Ends(*pull));
    EXPECT_THAT(pull->done[0], base::IsOk());
    EXPECT_EQ(pull->into, Filled(50, size));
    ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).sent.empty(); }));
    EXPECT_THAT(node(1).sent, testing::ElementsAre(base::IsOk()));
    node(1).sent.clear();
    EXPECT_EQ(node(1).asked.back(), std::pair(NodeRank(0), kKey));
  }
  EXPECT_EQ(node(1).asked.size(), 4u) << "repeated requests take effect once";
  const Pulls::Counters asker = node(0).pulls().counters();
  const Pulls::Counters source = node(1).pulls().counters();
  constexpr uint64_t kTotal = 21 * kBytes + 8;
  EXPECT_EQ(asker.bytes.payload_received, kTotal);
  EXPECT_EQ(source.bytes.payload_sent, kTotal);
  EXPECT_GE(source.bytes.wire_sent, kTotal);
  EXPECT_EQ(asker.bytes.payload_sent + source.bytes.payload_received, 0u);
  EXPECT_EQ(asker.asked, 4u);
  EXPECT_EQ(source.answered, 4u);
}

// In all directions at once, many at a time, answered in another order.
TEST_P(PullsConformance, ManyAtOnceDoNotMix) {
  constexpr int kEach = 20;
  std::vector<std::vector<std::byte>> served(3);
  for (int n = 0; n < 3; ++n) served[n] = Filled(n + 1, 300);
  std::vector<std::pair<int, std::unique_ptr<TestPull>>> pulls;
  for (int i = 0; i < kEach; ++i) {
    for (int asker = 0; asker < 3; ++asker) {
      const int from = (asker + 1 + i % 2) % 3;
      pulls.emplace_back(from, Pull(asker, from, 300));
    }
  }
  ASSERT_TRUE(cluster_->RunUntil([&] {
    size_t waiting = 0;
    for (auto& node : nodes_) waiting += node->waiting.size();
    return waiting == pulls.size();
  }));
  for (int n = 2; n >= 0; --n) {
    for (int i = kEach - 1; i >= 0; --i) {
      std::move(node(n).waiting[i])
          .Send(served[n], [this, n](const absl::Status& status) {
            node(n).sent.push_back(status);
          });
    }
  }
  for (const auto& [from, pull] : pulls) {
    ASSERT_TRUE(Ends(*pull));
    EXPECT_THAT(pull->done[0], base::IsOk());
    EXPECT_EQ(pull->into, served[from]);
  }
  for (auto& node : nodes_) EXPECT_EQ(node->pulls().num_asking(), 0u);
}

// A source may answer when it has the bytes.
TEST_P(PullsConformance, WaitsForASourceThatIsNotThereYet) {
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  cluster_->Settle();
  EXPECT_TRUE(pull->done.empty());
  EXPECT_TRUE(node(1).waiting[0].is_wanted());
  const std::vector<std::byte> bytes = Filled(60);
  std::move(node(1).waiting[0]).Send(bytes, [](const absl::Status&) {});
  ASSERT_TRUE(Ends(*pull));
  EXPECT_EQ(pull->into, bytes);
  EXPECT_EQ(node(1).asked.size(), 1u);
}

TEST_P(PullsConformance, RefusalsNameTheNodeAndTheReason) {
  node(1).refuse = absl::NotFoundError("bucket 4 is not here");
  auto pull = Pull(0, 1);
  ASSERT_TRUE(Ends(*pull));
  EXPECT_EQ(pull->done[0], absl::NotFoundError("node 1: bucket 4 is not here"));
  // Dropped without an answer.
  node(1).refuse = absl::OkStatus();
  pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  node(1).waiting.clear();
  ASSERT_TRUE(Ends(*pull));
  EXPECT_EQ(pull->done[0].code(), absl::StatusCode::kUnavailable);
  // Nobody serves it.
  PullKey unknown = kKey;
  unknown.kind = 6;
  pull = Pull(0, 1, kBytes, unknown);
  ASSERT_TRUE(Ends(*pull));
  EXPECT_EQ(pull->done[0].code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(node(1).pulls().counters().refused, 3u);
}

TEST_P(PullsConformance, AnotherSizeIsDataLossOnBothSides) {
  node(1).serve = Filled(50, kBytes - 1);
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(Ends(*pull));
  EXPECT_EQ(pull->done[0].code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).sent.empty(); }));
  EXPECT_EQ(node(1).sent[0].code(), absl::StatusCode::kDataLoss);
}

TEST_P(PullsConformance, CancelledPullsAreSilentAndUntouched) {
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  const std::vector<std::byte> bytes = Filled(60);
  std::move(node(1).waiting[0]).Send(bytes, [this](const absl::Status& s) {
    node(1).sent.push_back(s);
  });
  node(0).pulls().Cancel(*pull->id);
  node(0).pulls().Cancel(*pull->id);
  pull->into = Filled(99);  // bytes may have come before
  // The next one takes its place and gets its own bytes.
  node(1).serve = Filled(70);
  const auto next = Pull(0, 1);
  ASSERT_TRUE(Ends(*next));
  EXPECT_THAT(next->done[0], base::IsOk());
  EXPECT_EQ(next->into, Filled(70));
  ASSERT_TRUE(cluster_->RunUntil([&] { return node(1).sent.size() == 2; }));
  cluster_->Settle();
  EXPECT_TRUE(pull->done.empty());
  EXPECT_EQ(pull->into, Filled(99));
  EXPECT_THAT(node(1).sent,
              testing::ElementsAre(base::StatusIs(absl::StatusCode::kCancelled),
                                   base::IsOk()));
  EXPECT_EQ(node(1).pulls().num_sending(), 0u);
}

// I1: an answer of an old version can be taken back while it is under way.
TEST_P(PullsConformance, WithdrawnAnswersAreRefused) {
  const std::vector<std::byte> bytes = Filled(60);
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  std::move(node(1).waiting[0]).Send(bytes, [this](const absl::Status& s) {
    node(1).sent.push_back(s);
  });
  const absl::Status why = absl::FailedPreconditionError("version 13 is here");
  node(1).pulls().Withdraw(
      [](const PullKey& key) { return key.version < WeightVersion(12); }, why);
  EXPECT_EQ(node(1).pulls().num_sending(), 1u);
  node(1).pulls().Withdraw(
      [](const PullKey& key) { return key.version < WeightVersion(13); }, why);
  EXPECT_EQ(node(1).pulls().num_sending(), 0u);
  ASSERT_TRUE(Ends(*pull));
  if (pull->done[0].ok()) {  // a thread was faster
    EXPECT_EQ(pull->into, bytes);
  } else {
    EXPECT_EQ(pull->done[0],
              absl::FailedPreconditionError("node 1: version 13 is here"));
  }
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).sent.empty(); }));
  EXPECT_EQ(node(1).sent[0], why);
}

// I23.
TEST_P(PullsConformance, ADeadSourceIsUnavailable) {
  const auto waits = Pull(0, 1);
  const auto other = Pull(0, 2);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  node(1).waiting.clear();  // its refusals die with it, or arrive
  nodes_[1].reset();
  cluster_->Kill(1);
  ASSERT_TRUE(Ends(*waits));
  EXPECT_EQ(waits->done[0].code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(2).waiting.empty(); }));
  const std::vector<std::byte> bytes = Filled(60);
  std::move(node(2).waiting[0]).Send(bytes, [](const absl::Status&) {});
  ASSERT_TRUE(Ends(*other));
  EXPECT_THAT(other->done[0], base::IsOk());
}

TEST_P(PullsConformance, GoesWithoutWaiting) {
  const std::vector<std::byte> bytes = Filled(60);
  auto out = Pull(0, 1);
  auto in = Pull(1, 0);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(0).waiting.empty(); }));
  PullReply late = std::move(node(0).waiting[0]);
  nodes_[0].reset();
  out.reset();  // its memory too: the sanitizer watches
  EXPECT_FALSE(late.is_wanted());
  std::move(late).Send(bytes, [](const absl::Status&) { FAIL(); });
  cluster_->Settle();
  node(1).pulls().Cancel(*in->id);
  cluster_->Settle();
  EXPECT_TRUE(in->done.empty());
}

// The next request of a slot may be here before word that the last answer has
// arrived: that one is complete all the same, and counted.
TEST_P(PullsConformance, AnAnswerEndsBeforeTheNextRequestOfItsSlot) {
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  const std::vector<std::byte> bytes = Filled(60);
  std::move(node(1).waiting[0]).Send(bytes, [this](const absl::Status& s) {
    node(1).sent.push_back(s);
  });
  v1::Pull next;
  next.set_id(pull->id->value() + kMaxPulls);
  next.set_asker(0);
  next.mutable_request()->set_kind(PullTestNode::kKind);
  node(1).pulls().OnFrame(NodeRank(0), next);
  EXPECT_EQ(node(1).asked.size(), 1u);
  ASSERT_TRUE(Ends(*pull));
  EXPECT_THAT(pull->done[0], base::IsOk());
  ASSERT_TRUE(cluster_->RunUntil([&] { return node(1).asked.size() == 2; }));
  EXPECT_THAT(node(1).sent, testing::ElementsAre(base::IsOk()));
  EXPECT_EQ(node(1).pulls().counters().answered, 1u);
  EXPECT_EQ(node(1).pulls().counters().bytes.payload_sent, kBytes);
}

TEST_P(PullsConformance, RefusesWhatCannotBePulled) {
  std::vector<std::byte> into(10);
  Pulls& pulls = node(0).pulls();
  const auto done = [](const absl::Status&) {};
  EXPECT_THAT(pulls.Pull(NodeRank(0), kKey, into, done),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
  std::vector<PullId> ids;
  for (int i = 0; i < kMaxPulls; ++i) {
    const auto id = pulls.Pull(NodeRank(1), kKey, into, done);
    ASSERT_THAT(id, base::IsOk());
    ids.push_back(*id);
  }
  EXPECT_THAT(pulls.Pull(NodeRank(1), kKey, into, done),
              base::StatusIs(absl::StatusCode::kResourceExhausted));
  for (const PullId id : ids) pulls.Cancel(id);
  EXPECT_EQ(pulls.num_asking(), 0u);
}

// I27: frames that fit nothing change nothing and are counted.
TEST_P(PullsConformance, StraysChangeNothing) {
  const auto pull = Pull(0, 1);
  ASSERT_TRUE(cluster_->RunUntil([&] { return !node(1).waiting.empty(); }));
  Pulls& pulls = node(0).pulls();
  v1::Pull empty;
  empty.set_id(pull->id->value());
  empty.set_asker(1);
  pulls.OnFrame(NodeRank(1), empty);
  v1::Pull refusal;
  refusal.set_id(pull->id->value());
  refusal.set_asker(0);
  refusal.mutable_refusal()->set_code(99);
  pulls.OnFrame(NodeRank(2), refusal);  // of a node that was not asked
  refusal.set_asker(2);
  pulls.OnFrame(NodeRank(1), refusal);  // for another asker
  refusal.set_asker(0);
  refusal.set_id(pull->id->value() + kMaxPulls);
  pulls.OnFrame(NodeRank(1), refusal);  // of a pull that is not
  v1::Pull request;
  request.set_asker(2);
  request.mutable_request()->set_bucket(-1);
  pulls.OnFrame(NodeRank(1), request);  // in another's name
  request.set_asker(-1);
  pulls.OnFrame(NodeRank(-1), request);  // of no node
  EXPECT_EQ(pulls.counters().strays, 6u);
  EXPECT_TRUE(pull->done.empty());
  EXPECT_TRUE(node(0).asked.empty());
  // A refusal by who was asked ends it, whatever its code and its length.
  refusal.set_id(pull->id->value());
  refusal.mutable_refusal()->set_text(std::string(100'000, 'x'));
  pulls.OnFrame(NodeRank(1), refusal);
  ASSERT_EQ(pull->done.size(), 1u);
  EXPECT_EQ(pull->done[0].code(), absl::StatusCode::kUnknown);
  EXPECT_LT(pull->done[0].message().size(), 2 * kMaxRefusalBytes);
}

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_PULLS_CONFORMANCE_H_
