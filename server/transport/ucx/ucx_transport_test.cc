#include "server/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/base/thread_pool.h"
#include "server/transport/transport_conformance.h"
#include "server/transport/ucx/endpoint_token.h"
#include "server/transport/ucx/ucp_endpoint.h"

namespace ballast::transport {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr int kMaxTurns = 1000000;  // of loops that wait for something

UcxTransport::Options SomeOptions(bool has_thread) {
  UcxTransport::Options options;
  options.wire.devices = "lo";
  options.protocol.exchanges.chunk_bytes = 4096;
  options.has_thread = has_thread;
  return options;
}

class Inbox final : public PeerLinkObserver {
 public:
  void OnFrame(NodeRank, std::string frame) override {
    frames.push_back(std::move(frame));
  }
  std::vector<std::string> frames;
};

// Nodes of one process over the loopback device, all connected.
class UcxNodes {
 public:
  UcxNodes(int num_nodes, const UcxTransport::Options& options)
      : options_(options), nodes_(num_nodes), inboxes_(num_nodes) {
    for (int rank = 0; rank < num_nodes; ++rank) Start(rank);
    for (int rank = 0; rank < num_nodes; ++rank) ConnectTo(rank);
  }

  UcxTransport* node(int rank) { return nodes_[rank].get(); }
  Inbox* inbox(int rank) { return &inboxes_[rank]; }
  base::EventLoop* loop() { return loop_.get(); }
  int size() const { return static_cast<int>(nodes_.size()); }
  Incarnation incarnation(int rank) const {
    return Incarnation(1000 * lives_ + rank);
  }

  // A new life of the node, not connected yet.
  void Start(int rank) {
    nodes_[rank].reset();
    auto node = UcxTransport::Create(options_, NodeRank(rank),
                                     incarnation(rank), &clock_, loop_.get());
    ASSERT_THAT(node, IsOk());
    nodes_[rank] = *std::move(node);
    nodes_[rank]->peer_link()->SetObserver(&inboxes_[rank]);
  }
  void BeginNewLife() { ++lives_; }
  void Kill(int rank) { nodes_[rank].reset(); }

  void Connect(int from, int to) {
    ASSERT_THAT(nodes_[from]->Connect(NodeRank(to), nodes_[to]->LocalToken(),
                                      incarnation(to)),
                IsOk());
  }
  // All others to this one.
  void ConnectTo(int rank) {
    for (int other = 0; other < size(); ++other) {
      if (other != rank && nodes_[other] != nullptr) Connect(other, rank);
    }
  }

  template <typename Condition>
  [[nodiscard]] bool RunUntil(Condition condition) {
    for (int turn = 0; turn < kMaxTurns; ++turn) {
      if (condition()) return true;
      if (options_.has_thread) {
        loop_->RunOnce(absl::Milliseconds(100));
        continue;
      }
      for (auto& node : nodes_) {
        if (node != nullptr) node->RunOnce(absl::ZeroDuration());
      }
      loop_->RunOnce(absl::ZeroDuration());
    }
    return false;
  }

 private:
  const UcxTransport::Options options_;
  base::MonotonicClock clock_;
  std::unique_ptr<base::EventLoop> loop_ =
      base::EventLoop::Create(&clock_).value();
  int lives_ = 1;
  std::vector<std::unique_ptr<UcxTransport>> nodes_;
  std::vector<Inbox> inboxes_;
};

// Without threads, so that nothing moves but in Settle.
class UcxCluster final : public TestCluster {
 public:
  explicit UcxCluster(int num_nodes)
      : nodes_(num_nodes, SomeOptions(/*has_thread=*/false)) {
    Settle();
  }

  Transport* node(int rank) override { return nodes_.node(rank); }
  void Kill(int rank) override { nodes_.Kill(rank); }

  // The same connections carry frames, in order: once a frame is in, all that
  // was said before it is in too. A round for each answer to an answer.
  void Settle() override {
    constexpr int kRounds = 16;
    for (int rank = 0; rank < nodes_.size(); ++rank) {
      if (nodes_.node(rank) != nullptr) continue;
      EXPECT_TRUE(nodes_.RunUntil([&] { return AllHaveLost(rank); }));
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<size_t> expected(nodes_.size());
      for (int from = 0; from < nodes_.size(); ++from) {
        for (int to = 0; to < nodes_.size(); ++to) {
          if (nodes_.node(from) == nullptr || nodes_.node(to) == nullptr) {
            continue;
          }
          EXPECT_THAT(nodes_.node(from)->peer_link()->Send(NodeRank(to), "."),
                      IsOk());
          ++expected[to];
        }
      }
      EXPECT_TRUE(nodes_.RunUntil([&] {
        for (int to = 0; to < nodes_.size(); ++to) {
          if (nodes_.inbox(to)->frames.size() < expected[to]) return false;
        }
        return true;
      }));
      for (int to = 0; to < nodes_.size(); ++to) {
        nodes_.inbox(to)->frames.clear();
      }
    }
  }

 private:
  bool AllHaveLost(int dead) {
    for (int rank = 0; rank < nodes_.size(); ++rank) {
      if (nodes_.node(rank) != nullptr &&
          nodes_.node(rank)->PeerStatus(NodeRank(dead)).ok()) {
        return false;
      }
    }
    return true;
  }

  UcxNodes nodes_;
};

INSTANTIATE_TEST_SUITE_P(
    Ucx, TransportConformance,
    ::testing::Values([](int num_nodes) -> std::unique_ptr<TestCluster> {
      return std::make_unique<UcxCluster>(num_nodes);
    }));

// Every node sends a part of its own size to every other.
struct AllToAll {
  AllToAll(UcxNodes* nodes, int self, int bucket, size_t scale) : self(self) {
    ExchangeSpec spec{
        .job = 1, .generation = Generation(1), .bucket = BucketId(bucket)};
    in.resize(nodes->size());
    out.resize(nodes->size());
    for (int peer = 0; peer < nodes->size(); ++peer) {
      if (peer == self) continue;
      out[peer].resize(SizeOf(self, peer, scale));
      in[peer].resize(SizeOf(peer, self, scale));
      spec.sends.push_back({NodeRank(peer), out[peer]});
      spec.receives.push_back({NodeRank(peer), in[peer]});
    }
    exchange = nodes->node(self)->Prepare(spec, &observer).value();
  }
  static size_t SizeOf(int from, int to, size_t scale) {
    return scale * (from + 1) + to;
  }
  static std::byte Value(int from, int to, int64_t step, size_t i) {
    return std::byte(from * 31 + to * 17 + step * 7 + i / 100);
  }
  void Post(int64_t step) {
    for (size_t peer = 0; peer < out.size(); ++peer) {
      for (size_t i = 0; i < out[peer].size(); ++i) {
        out[peer][i] = Value(self, peer, step, i);
      }
    }
    ASSERT_THAT(exchange->Post(Step(step)), IsOk());
  }
  bool HasWhatOthersSent(int64_t step) const {
    for (size_t peer = 0; peer < in.size(); ++peer) {
      for (size_t i = 0; i < in[peer].size(); ++i) {
        if (in[peer][i] != Value(peer, self, step, i)) return false;
      }
    }
    return true;
  }

  const int self;
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
  RecordingObserver observer;
  std::unique_ptr<Exchange> exchange;
};

class UcxThreadsTest : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<AllToAll>> MakeAllToAll(int bucket,
                                                      size_t scale) {
    std::vector<std::unique_ptr<AllToAll>> sides;
    for (int rank = 0; rank < nodes_.size(); ++rank) {
      sides.push_back(std::make_unique<AllToAll>(&nodes_, rank, bucket, scale));
    }
    return sides;
  }

  UcxNodes nodes_{3, SomeOptions(/*has_thread=*/true)};
};

// I22, I19: several exchanges at once, for many steps.
TEST_F(UcxThreadsTest, MovesManyChunksOfManyExchanges) {
  std::vector<std::vector<std::unique_ptr<AllToAll>>> buckets;
  for (const size_t scale : {0, 1, 4096, 100000}) {
    buckets.push_back(MakeAllToAll(static_cast<int>(buckets.size()), scale));
  }
  for (size_t step = 1; step <= 20; ++step) {
    for (auto& bucket : buckets) {
      for (auto& side : bucket) side->Post(step);
    }
    ASSERT_TRUE(nodes_.RunUntil([&] {
      return std::ranges::all_of(buckets, [&](const auto& bucket) {
        return std::ranges::all_of(bucket, [&](const auto& side) {
          return side->observer.calls.size() == step;
        });
      });
    }));
    for (auto& bucket : buckets) {
      for (auto& side : bucket) {
        ASSERT_THAT(side->observer.calls.back().status, IsOk());
        EXPECT_TRUE(side->HasWhatOthersSent(step));
      }
    }
  }
}

// A pool that is busy on every processor: each of its threads has a task that
// does not end before this does.
class HeldPool {
 public:
  explicit HeldPool(base::Executor* executor)
      : pool_({.num_threads =
                   2 * static_cast<int>(std::thread::hardware_concurrency())},
              executor) {
    for (int i = 0; i < pool_.num_threads(); ++i) {
      pool_.Submit(&tasks_.emplace_back(this));
    }
    while (num_held_ < pool_.num_threads()) std::this_thread::yield();
  }
  ~HeldPool() { is_held_ = false; }

  base::ComputePool* pool() { return &pool_; }

 private:
  struct Spin final : base::Task {
    explicit Spin(HeldPool* the_pool) : pool(the_pool) {}
    void Run(int) override {
      ++pool->num_held_;
      while (pool->is_held_) {
      }
    }
    void Done() override {}
    HeldPool* const pool;
  };
  std::atomic<bool> is_held_ = true;
  std::atomic<int> num_held_ = 0;
  std::deque<Spin> tasks_;
  base::ThreadPool pool_;  // ends first
};

// Tensors and frames move though no thread of the pool is ever free.
TEST_F(UcxThreadsTest, ABusyPoolDoesNotStopProgress) {
  const HeldPool held(nodes_.loop());
  const auto sides = MakeAllToAll(0, 100'000);
  for (size_t step = 1; step <= 5; ++step) {
    for (const auto& side : sides) side->Post(step);
    ASSERT_TRUE(nodes_.RunUntil([&] {
      return std::ranges::all_of(sides, [&](const auto& side) {
        return side->observer.calls.size() == step;
      });
    }));
    for (const auto& side : sides) EXPECT_TRUE(side->HasWhatOthersSent(step));
    ASSERT_THAT(nodes_.node(0)->peer_link()->Send(NodeRank(1), "ping"), IsOk());
    ASSERT_TRUE(nodes_.RunUntil(
        [&] { return nodes_.inbox(1)->frames.size() == step; }));
  }
}

// The control: progress that is a task of the pool waits for a free thread.
TEST(UcxTransportTest, ProgressInABusyPoolWouldStop) {
  struct Progress final : base::Task {
    explicit Progress(UcxNodes* the_nodes) : nodes(the_nodes) {}
    void Run(int) override {
      for (int rank = 0; rank < nodes->size(); ++rank) {
        nodes->node(rank)->RunOnce(absl::ZeroDuration());
      }
    }
    void Done() override {}
    UcxNodes* const nodes;
  };
  UcxNodes nodes(2, SomeOptions(/*has_thread=*/false));
  Progress progress(&nodes);
  {
    HeldPool held(nodes.loop());
    ASSERT_THAT(nodes.node(0)->peer_link()->Send(NodeRank(1), "ping"), IsOk());
    held.pool()->Submit(&progress);
    for (int turn = 0; turn < 20; ++turn) {
      nodes.loop()->RunOnce(absl::Milliseconds(10));
    }
    EXPECT_TRUE(nodes.inbox(1)->frames.empty());
  }
  EXPECT_TRUE(
      nodes.RunUntil([&] { return nodes.inbox(1)->frames.size() == 1; }));
}

// After Cancel the memory is the owner's: the sanitizer and the contents say.
TEST_F(UcxThreadsTest, CancelAtAnyTimeLeavesTheMemoryAlone) {
  base::SeededRandom random(1);
  auto sides = MakeAllToAll(0, 50000);
  for (int64_t step = 1; step <= 50; ++step) {
    for (auto& side : sides) side->Post(step);
    for (uint64_t i = random.Below(20); i > 0; --i) {
      nodes_.loop()->RunOnce(absl::ZeroDuration());
    }
    for (auto& side : sides) {
      side->exchange->Cancel();
      for (auto& part : side->in) std::ranges::fill(part, std::byte{0xee});
    }
    nodes_.loop()->RunOnce(absl::ZeroDuration());
    for (auto& side : sides) {
      for (auto& part : side->in) {
        EXPECT_TRUE(std::ranges::all_of(
            part, [](std::byte b) { return b == std::byte{0xee}; }));
      }
    }
  }
  for (auto& side : sides) side->observer.calls.clear();
  for (auto& side : sides) side->Post(99);
  ASSERT_TRUE(nodes_.RunUntil([&] {
    return std::ranges::all_of(
        sides, [](const auto& side) { return !side->observer.calls.empty(); });
  }));
  for (auto& side : sides) {
    EXPECT_THAT(side->observer.calls[0].status, IsOk());
    EXPECT_TRUE(side->HasWhatOthersSent(99));
  }
}

TEST_F(UcxThreadsTest, FramesKeepTheirOrder) {
  for (int i = 0; i < 200; ++i) {
    const std::string frame(i * 97, static_cast<char>('a' + i % 26));
    ASSERT_THAT(nodes_.node(0)->peer_link()->Send(NodeRank(1), frame), IsOk());
  }
  ASSERT_THAT(nodes_.node(0)->peer_link()->Send(
                  NodeRank(1), std::string(kMaxFrameBytes, 'z')),
              IsOk());
  const auto& frames = nodes_.inbox(1)->frames;
  ASSERT_TRUE(nodes_.RunUntil([&] { return frames.size() == 201; }));
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(frames[i], std::string(i * 97, static_cast<char>('a' + i % 26)));
  }
  EXPECT_EQ(frames[200].size(), kMaxFrameBytes);
}

TEST_F(UcxThreadsTest, FramesToOneselfAndRefusedOnes) {
  PeerLink* const link = nodes_.node(0)->peer_link();
  ASSERT_THAT(link->Send(NodeRank(0), "me"), IsOk());
  EXPECT_TRUE(nodes_.inbox(0)->frames.empty()) << "never inside Send";
  ASSERT_TRUE(
      nodes_.RunUntil([&] { return nodes_.inbox(0)->frames.size() == 1; }));
  EXPECT_THAT(link->Send(NodeRank(1), std::string(kMaxFrameBytes + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(link->Send(NodeRank(9), "x"),
              StatusIs(absl::StatusCode::kUnavailable, "node 9"));
}

// I23: the others go on; a new life of the node is another node.
TEST_F(UcxThreadsTest, ADeadNodeIsNamedAndItsNextLifeIsWelcome) {
  const std::string old_token = nodes_.node(2)->LocalToken();
  nodes_.Kill(2);
  ASSERT_TRUE(nodes_.RunUntil([&] {
    return !nodes_.node(0)->PeerStatus(NodeRank(2)).ok() &&
           !nodes_.node(1)->PeerStatus(NodeRank(2)).ok();
  }));
  EXPECT_THAT(nodes_.node(0)->PeerStatus(NodeRank(2)),
              StatusIs(absl::StatusCode::kUnavailable, "node 2"));
  EXPECT_THAT(nodes_.node(0)->PeerStatus(NodeRank(1)), IsOk());

  nodes_.BeginNewLife();
  nodes_.Start(2);
  EXPECT_THAT(
      nodes_.node(0)->Connect(NodeRank(2), old_token, nodes_.incarnation(2)),
      StatusIs(absl::StatusCode::kFailedPrecondition));
  nodes_.ConnectTo(2);
  for (const int other : {0, 1}) {
    ASSERT_THAT(nodes_.node(2)->Connect(NodeRank(other),
                                        nodes_.node(other)->LocalToken(),
                                        Incarnation(1000 + other)),
                IsOk());
  }
  auto sides = MakeAllToAll(0, 10000);
  for (auto& side : sides) side->Post(1);
  ASSERT_TRUE(nodes_.RunUntil([&] {
    return std::ranges::all_of(
        sides, [](const auto& side) { return !side->observer.calls.empty(); });
  }));
  for (auto& side : sides) {
    EXPECT_THAT(side->observer.calls[0].status, IsOk());
  }
}

// I23: at whatever moment of connecting. UCX 1.13 aborts here when endpoints
// are made from worker addresses.
TEST_F(UcxThreadsTest, ANodeThatDiesWhileItConnectsHurtsNobody) {
  for (int life = 0; life < 40; ++life) {
    nodes_.BeginNewLife();
    nodes_.Start(2);
    nodes_.ConnectTo(2);
    for (const int other : {0, 1}) {
      ASSERT_THAT(nodes_.node(2)->Connect(NodeRank(other),
                                          nodes_.node(other)->LocalToken(),
                                          Incarnation(1000 + other)),
                  IsOk());
    }
    for (int i = 0; i < life % 8; ++i) {
      nodes_.loop()->RunOnce(absl::Microseconds(200));
    }
    nodes_.Kill(2);
  }
  ASSERT_THAT(nodes_.node(0)->peer_link()->Send(NodeRank(1), "alive"), IsOk());
  EXPECT_TRUE(
      nodes_.RunUntil([&] { return !nodes_.inbox(1)->frames.empty(); }));
}

// The same lives meet again after a broken connection.
TEST_F(UcxThreadsTest, ADisconnectedNodeCanBeConnectedAgain) {
  nodes_.node(0)->Disconnect(NodeRank(1));
  EXPECT_THAT(nodes_.node(0)->PeerStatus(NodeRank(1)),
              StatusIs(absl::StatusCode::kNotFound));
  nodes_.Connect(0, 1);
  nodes_.Connect(1, 0);
  ASSERT_THAT(nodes_.node(0)->peer_link()->Send(NodeRank(1), "again"), IsOk());
  EXPECT_TRUE(
      nodes_.RunUntil([&] { return !nodes_.inbox(1)->frames.empty(); }));
}

TEST_F(UcxThreadsTest, WhatWaitsForAnAbsentNodeFails) {
  base::MonotonicClock clock;
  UcxTransport::Options options = SomeOptions(true);
  options.protocol.connect_timeout = absl::Milliseconds(300);
  auto absent = UcxTransport::Create(options, NodeRank(5), Incarnation(5),
                                     &clock, nodes_.loop());
  ASSERT_THAT(absent, IsOk());
  const std::string token = (*absent)->LocalToken();
  for (const bool is_listening : {true, false}) {
    if (!is_listening) absent->reset();
    auto node = UcxTransport::Create(options, NodeRank(4), Incarnation(4),
                                     &clock, nodes_.loop());
    ASSERT_THAT(node, IsOk());
    ASSERT_THAT((*node)->Connect(NodeRank(5), token, Incarnation(5)), IsOk());
    RecordingObserver observer;
    std::vector<std::byte> bytes(100);
    ExchangeSpec spec{.sends = {{NodeRank(5), bytes}}};
    auto exchange = (*node)->Prepare(spec, &observer);
    ASSERT_THAT(exchange, IsOk());
    ASSERT_THAT((*exchange)->Post(Step(1)), IsOk());
    ASSERT_TRUE(nodes_.RunUntil([&] { return !observer.calls.empty(); }));
    EXPECT_THAT(observer.calls[0].status,
                StatusIs(absl::StatusCode::kUnavailable, "node 5"));
  }
}

// I27: whoever knows the address can send anything.
TEST_F(UcxThreadsTest, RandomBytesOnTheWireAreCountedAndDropped) {
  class Nobody final : public UcpReceiver {
    void OnMessage(std::span<const std::byte>) override {}
    void OnConnection(ucp_conn_request_h) override {}
  } nobody;
  struct Sent final : UcpSendObserver {
    void OnSent() override { ++count; }
    int count = 0;
  } sent;
  UcpWorker::Options options;
  options.devices = "lo";
  auto worker = UcpWorker::Create(options, &nobody);
  ASSERT_THAT(worker, IsOk());
  const auto token = DecodeToken(nodes_.node(0)->LocalToken(), /*seed=*/0);
  ASSERT_THAT(token, IsOk());
  auto endpoint = UcpEndpoint::Connect(worker->get(), token->address);
  ASSERT_THAT(endpoint, IsOk());
  base::SeededRandom random(2);
  std::vector<std::vector<std::byte>> messages;
  constexpr int kCount = 300;
  for (int i = 0; i < kCount; ++i) {
    messages.emplace_back(random.Below(i < 290 ? 300 : 100000));
    for (std::byte& byte : messages.back()) byte = std::byte(random.Next());
  }
  for (const auto& message : messages) {
    ASSERT_THAT((*endpoint)->Send(message, &sent), IsOk());
  }
  EXPECT_TRUE(nodes_.RunUntil([&] {
    (*worker)->Progress();
    return sent.count == kCount && nodes_.node(0)->stats().malformed == kCount;
  }));
  auto sides = MakeAllToAll(0, 10000);
  for (auto& side : sides) side->Post(1);
  EXPECT_TRUE(nodes_.RunUntil([&] {
    return std::ranges::all_of(
        sides, [](const auto& side) { return !side->observer.calls.empty(); });
  }));
}

TEST(UcxTransportTest, RefusesOptionsThatCannotBe) {
  base::MonotonicClock clock;
  auto loop = base::EventLoop::Create(&clock);
  ASSERT_THAT(loop, IsOk());
  const auto create = [&](const UcxTransport::Options& options) {
    return UcxTransport::Create(options, NodeRank(0), Incarnation(1), &clock,
                                loop->get())
        .status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  UcxTransport::Options options = SomeOptions(true);
  options.protocol.exchanges.chunk_bytes = 0;
  EXPECT_THAT(create(options), StatusIs(kInvalid, "chunks"));
  options = SomeOptions(true);
  options.wire.window = 0;
  EXPECT_THAT(create(options), StatusIs(kInvalid, "window"));
  options = SomeOptions(true);
  options.protocol.ping_interval = options.protocol.peer_timeout;
  EXPECT_THAT(create(options), StatusIs(kInvalid, "ping"));
  options = SomeOptions(true);
  options.wire.devices = "no-such-device";
  EXPECT_THAT(create(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "\"no-such-device\" (each must be there and up)"));
}

}  // namespace
}  // namespace ballast::transport
