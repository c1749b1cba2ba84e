// What every transport backend must do. A backend's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance, Values(factory));
#ifndef SERVER_TRANSPORT_TRANSPORT_CONFORMANCE_H_
#define SERVER_TRANSPORT_TRANSPORT_CONFORMANCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/ids.h"
#include "server/base/status_matchers.h"
#include "server/transport/transport.h"

namespace ballast::transport {

// Some nodes and what makes them go on.
class TestCluster {
 public:
  virtual ~TestCluster() = default;
  virtual Transport* node(int rank) = 0;
  // The process of that node dies; its exchanges were released before.
  virtual void Kill(int rank) = 0;
  // Until nothing more happens by itself.
  virtual void Settle() = 0;
};

using TestClusterFactory = std::unique_ptr<TestCluster> (*)(int num_nodes);

class RecordingObserver final : public ExchangeObserver {
 public:
  struct Call {
    Step step;
    absl::Status status;
  };
  void OnExchangeDone(Exchange* exchange, Step step,
                      const absl::Status& status) override {
    EXPECT_FALSE(exchange->is_posted());
    calls.push_back({step, status});
    if (then != nullptr) then();
  }
  std::vector<Call> calls;
  absl::AnyInvocable<void()> then;
};

// One side of an exchange with memory of its own.
struct TestSide {
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  RecordingObserver observer;
  std::unique_ptr<Exchange> exchange;
};

class TransportConformance
    : public ::testing::TestWithParam<TestClusterFactory> {
 protected:
  static constexpr size_t kBytes = 1000;

  static std::vector<std::byte> Filled(int value, size_t size = kBytes) {
    return std::vector<std::byte>(size, std::byte(value));
  }

  // `from` sends `size` bytes of `value` to `to` and receives as many.
  std::unique_ptr<TestSide> Side(int from, int to, int value,
                                 size_t size = kBytes, int64_t generation = 1) {
    auto side = std::make_unique<TestSide>();
    side->out = Filled(value, size);
    side->in = Filled(0, size);
    ExchangeSpec spec;
    spec.job = 7;
    spec.generation = Generation(generation);
    spec.phase = 2;
    spec.bucket = BucketId(3);
    spec.sends = {{NodeRank(to), side->out}};
    spec.receives = {{NodeRank(to), side->in}};
    auto exchange = cluster_->node(from)->Prepare(spec, &side->observer);
    EXPECT_THAT(exchange, base::IsOk());
    if (exchange.ok()) side->exchange = *std::move(exchange);
    return side;
  }

  std::unique_ptr<TestCluster> cluster_ = GetParam()(3);
};

TEST_P(TransportConformance, MovesBytesBothWaysAgainAndAgain) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  for (int64_t step = 1; step <= 3; ++step) {
    a->out.assign(kBytes, std::byte(10 + step));  // the memory stays
    ASSERT_THAT(a->exchange->Post(Step(step)), base::IsOk());
    cluster_->Settle();
    EXPECT_EQ(a->observer.calls.size(), step - 1u) << "the peer did not post";
    ASSERT_THAT(b->exchange->Post(Step(step)), base::IsOk());
    EXPECT_EQ(b->observer.calls.size(), step - 1u) << "never inside Post";
    cluster_->Settle();
    EXPECT_EQ(b->in, Filled(10 + step));
    EXPECT_EQ(a->in, Filled(20));
    for (auto* side : {a.get(), b.get()}) {
      ASSERT_EQ(side->observer.calls.size(), step);
      EXPECT_EQ(side->observer.calls.back().step, Step(step));
      EXPECT_THAT(side->observer.calls.back().status, base::IsOk());
      EXPECT_EQ(side->exchange->counters().payload_sent, step * kBytes);
      EXPECT_EQ(side->exchange->counters().payload_received, step * kBytes);
      EXPECT_GE(side->exchange->counters().wire_sent, step * kBytes);
      EXPECT_GE(side->exchange->counters().wire_received, step * kBytes);
    }
  }
}

// I19: bytes of another step are never taken.
TEST_P(TransportConformance, AnotherStepDoesNotMatch) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(2)), base::IsOk());
  cluster_->Settle();
  EXPECT_TRUE(a->observer.calls.empty());
  EXPECT_TRUE(b->observer.calls.empty());
  EXPECT_EQ(b->in, Filled(0));
  a->exchange->Cancel();
  ASSERT_THAT(a->exchange->Post(Step(2)), base::IsOk());
  cluster_->Settle();
  ASSERT_EQ(b->observer.calls.size(), 1u);
  EXPECT_EQ(b->in, Filled(10));
}

// I19: nor of another generation, bucket, phase or job.
TEST_P(TransportConformance, AnotherGenerationDoesNotMatch) {
  auto a = Side(0, 1, 10, kBytes, 1);
  auto b = Side(1, 0, 20, kBytes, 2);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_TRUE(b->observer.calls.empty());
  auto next = Side(0, 1, 30, kBytes, 2);
  ASSERT_THAT(next->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  ASSERT_EQ(b->observer.calls.size(), 1u);
  EXPECT_EQ(b->in, Filled(30));
  EXPECT_TRUE(a->observer.calls.empty());
}

TEST_P(TransportConformance, WaitsForEveryPart) {
  TestSide root;
  root.in = Filled(0, 2 * kBytes);
  ExchangeSpec spec;
  spec.generation = Generation(1);
  spec.receives = {{NodeRank(1), std::span(root.in).first(kBytes)},
                   {NodeRank(2), std::span(root.in).last(kBytes)}};
  auto exchange = cluster_->node(0)->Prepare(spec, &root.observer);
  ASSERT_THAT(exchange, base::IsOk());
  ASSERT_THAT((*exchange)->Post(Step(1)), base::IsOk());
  TestSide leaves[2];
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(root.observer.calls.empty());
    leaves[i].out = Filled(i + 1);
    ExchangeSpec leaf;
    leaf.generation = Generation(1);
    leaf.sends = {{NodeRank(0), leaves[i].out}};
    auto sent = cluster_->node(i + 1)->Prepare(leaf, &leaves[i].observer);
    ASSERT_THAT(sent, base::IsOk());
    leaves[i].exchange = *std::move(sent);
    ASSERT_THAT(leaves[i].exchange->Post(Step(1)), base::IsOk());
    cluster_->Settle();
  }
  ASSERT_EQ(root.observer.calls.size(), 1u);
  EXPECT_EQ(root.in.front(), std::byte{1});
  EXPECT_EQ(root.in.back(), std::byte{2});
}

// I4: nothing to move is still a meeting; nobody to meet is done.
TEST_P(TransportConformance, EmptyPartsAndEmptyExchanges) {
  auto a = Side(0, 1, 10, 0);
  auto b = Side(1, 0, 20, 0);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_TRUE(a->observer.calls.empty());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_EQ(a->observer.calls.size(), 1u);

  RecordingObserver observer;
  auto alone = cluster_->node(0)->Prepare({.job = 9}, &observer);
  ASSERT_THAT(alone, base::IsOk());
  ASSERT_THAT((*alone)->Post(Step(1)), base::IsOk());
  EXPECT_TRUE(observer.calls.empty());
  cluster_->Settle();
  ASSERT_EQ(observer.calls.size(), 1u);
  EXPECT_THAT(observer.calls[0].status, base::IsOk());
}

TEST_P(TransportConformance, DifferentSizesAreDataLossOnBothSides) {
  auto a = Side(0, 1, 10, kBytes);
  auto b = Side(1, 0, 20, kBytes - 1);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  for (auto* side : {a.get(), b.get()}) {
    ASSERT_EQ(side->observer.calls.size(), 1u);
    EXPECT_THAT(side->observer.calls[0].status,
                base::StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_P(TransportConformance, CancelledExchangesAreSilentAndUntouched) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  a->exchange->Cancel();  // the parts are already under way
  a->exchange->Cancel();
  EXPECT_FALSE(a->exchange->is_posted());
  cluster_->Settle();
  EXPECT_TRUE(a->observer.calls.empty());
  EXPECT_EQ(a->in, Filled(0));
  // And it can go on.
  b->exchange->Cancel();
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_EQ(a->observer.calls.size(), 1u);
  EXPECT_EQ(b->observer.calls.size(), 1u);
  EXPECT_EQ(a->in, Filled(20));
}

TEST_P(TransportConformance, AReceiverThatPostsAgainIsServed) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  b->exchange->Cancel();
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_EQ(a->observer.calls.size(), 1u);
  EXPECT_EQ(b->observer.calls.size(), 1u);
  EXPECT_EQ(b->in, Filled(10));
}

TEST_P(TransportConformance, ReleaseDoesNotWait) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  a.reset();  // its memory too: the sanitizer watches
  cluster_->Settle();
  EXPECT_TRUE(b->observer.calls.empty());
  EXPECT_EQ(b->in, Filled(0));
}

TEST_P(TransportConformance, AnObserverMayPostAgainOrRelease) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  a->observer.then = [&] {
    if (a->observer.calls.size() == 1) {
      EXPECT_THAT(a->exchange->Post(Step(2)), base::IsOk());
    }
  };
  b->observer.then = [&] {
    if (b->observer.calls.size() == 1) {
      EXPECT_THAT(b->exchange->Post(Step(2)), base::IsOk());
    } else {
      b->exchange.reset();
    }
  };
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  ASSERT_THAT(b->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  EXPECT_EQ(a->observer.calls.size(), 2u);
  EXPECT_EQ(b->observer.calls.size(), 2u);
}

TEST_P(TransportConformance, OneStepAtATime) {
  auto a = Side(0, 1, 10);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  EXPECT_THAT(a->exchange->Post(Step(2)),
              base::StatusIs(absl::StatusCode::kFailedPrecondition));
}

// I23: a dead peer is an error, for the others too who wait on this exchange.
TEST_P(TransportConformance, ADeadPeerIsUnavailable) {
  auto a = Side(0, 1, 10);
  auto b = Side(1, 0, 20);
  ASSERT_THAT(a->exchange->Post(Step(1)), base::IsOk());
  cluster_->Settle();
  b.reset();
  cluster_->Kill(1);
  cluster_->Settle();
  ASSERT_EQ(a->observer.calls.size(), 1u);
  EXPECT_THAT(a->observer.calls[0].status,
              base::StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(TransportConformance, RefusesWhatCannotBePrepared) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  RecordingObserver observer;
  std::vector<std::byte> bytes = Filled(1);
  Transport* const transport = cluster_->node(0);
  ExchangeSpec self{.sends = {{NodeRank(0), bytes}}};
  EXPECT_THAT(transport->Prepare(self, &observer), base::StatusIs(kInvalid));
  ExchangeSpec twice{.sends = {{NodeRank(1), bytes}, {NodeRank(1), bytes}}};
  EXPECT_THAT(transport->Prepare(twice, &observer), base::StatusIs(kInvalid));
  ExchangeSpec fine{.sends = {{NodeRank(1), bytes}}};
  auto first = transport->Prepare(fine, &observer);
  ASSERT_THAT(first, base::IsOk());
  EXPECT_THAT(transport->Prepare(fine, &observer),
              base::StatusIs(absl::StatusCode::kAlreadyExists));
  first->reset();
  EXPECT_THAT(transport->Prepare(fine, &observer), base::IsOk());
}

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_TRANSPORT_CONFORMANCE_H_
