// Hops 3 and 4, counters, and what happens when things go wrong.
#include "server/collective/collective.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/clock.h"
#include "server/base/event_loop.h"
#include "server/base/status_matchers.h"
#include "server/base/thread_pool.h"
#include "server/collective/collective_rig.h"
#include "server/collective/tree_plan.h"

namespace ballast::collective {
namespace {

using base::StatusIs;

// Fills what each node owns with bytes of (node, position), all else with
// 0xee; returns what every segment must be after publishing.
std::vector<std::byte> FillOwned(Rig* rig, int nodes) {
  const std::byte other{0xee};
  std::vector<std::byte> expected(rig->layout().weights_bytes(), other);
  for (int node = 0; node < nodes; ++node) {
    std::ranges::fill(rig->weights(node), other);
  }
  for (const layout::Bucket& bucket : rig->layout().buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Piece& piece : shard.pieces) {
        const int size = SizeOf(rig->layout().tensor(piece.tensor).dtype);
        const uint64_t base = rig->layout().place(piece.tensor).weight_offset;
        for (uint64_t i = base + piece.begin * size;
             i < base + piece.end * size; ++i) {
          expected[i] = static_cast<std::byte>(i * 31 + shard.owner.value());
          rig->weights(shard.owner.value())[i] = expected[i];
        }
      }
    }
  }
  return expected;
}

TEST(CollectiveTest, EveryNodePublishesTheOwnersBytes) {  // I5, I7, I25
  for (const int nodes : {1, 2, 3, 5}) {
    for (const uint64_t bucket_bytes : {1, 50'000, 1 << 22}) {
      Rig rig({.nodes = nodes, .bucket_bytes = bucket_bytes, .seed = 9});
      rig.CreateAll(Generation(1));
      const std::vector<std::byte> expected = FillOwned(&rig, nodes);
      rig.StartPublishAll(Step(1));
      rig.Settle();
      for (int node = 0; node < nodes; ++node) {
        EXPECT_EQ(rig.weights(node), expected) << nodes << " nodes";
        std::vector<int> published = rig.observer(node).published;
        std::ranges::sort(published);
        ASSERT_EQ(published.size(), rig.layout().buckets().size());
        EXPECT_EQ(std::ranges::adjacent_find(published), published.end());
      }
    }
  }
}

TEST(CollectiveTest, BroadcastCopiesEverythingFromTheRoot) {  // frozen ones too
  for (const int nodes : {1, 2, 4}) {
    for (int root = 0; root < nodes; ++root) {
      Rig rig({.nodes = nodes});
      rig.CreateAll(Generation(1));
      for (size_t i = 0; i < rig.weights(root).size(); ++i) {
        rig.weights(root)[i] = static_cast<std::byte>(i * 7);
      }
      const std::vector<std::byte> expected = rig.weights(root);
      rig.OnEachNode(
          [&](Collective* c) { c->StartBroadcast(NodeRank(root), Step(0)); });
      rig.Settle();
      for (int node = 0; node < nodes; ++node) {
        EXPECT_EQ(rig.weights(node), expected);
        EXPECT_EQ(rig.observer(node).num_broadcast, 1);
        // Counted apart: a step's bytes are the same in the first one (I21).
        const ByteCounts counts = rig.collective(node)->byte_counts();
        EXPECT_EQ(counts.wire_sent + counts.wire_received, 0);
        EXPECT_EQ(counts.payload_sent, 0);
        EXPECT_EQ(counts.broadcast_sent,
                  rig.links().sent_bytes(NodeRank(node)));
        EXPECT_EQ(counts.broadcast_sent > 0, node == root && nodes > 1);
        EXPECT_EQ(counts.broadcast_received > 0, node != root);
      }
    }
  }
}

TEST(CollectiveTest, ABroadcastCanBeRepeated) {
  Rig rig({.nodes = 3});
  rig.CreateAll(Generation(1));
  for (int time = 0; time < 3; ++time) {
    std::ranges::fill(rig.weights(0), static_cast<std::byte>(time + 1));
    rig.OnEachNode(
        [&](Collective* c) { c->StartBroadcast(NodeRank(0), Step(7 * time)); });
    rig.Settle();
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(rig.weights(node), rig.weights(0));
      EXPECT_EQ(rig.observer(node).num_broadcast, time + 1);
    }
  }
}

TEST(CollectiveTest, ABroadcastOfManyPartsIsComplete) {
  Rig rig({.nodes = 2, .tensors = {{"w", {10'000'000}}}});  // 40 MB
  rig.CreateAll(Generation(1));
  std::ranges::fill(rig.weights(1), std::byte{3});
  rig.OnEachNode(
      [&](Collective* c) { c->StartBroadcast(NodeRank(1), Step(0)); });
  rig.Settle();
  EXPECT_EQ(rig.weights(0), rig.weights(1));
  EXPECT_EQ(rig.observer(0).num_broadcast, 1);
}

TEST(CollectiveTest, BytesAreThoseOfTheFormula) {  // I21
  struct Shape {
    int nodes, workers;
  };
  for (const auto [nodes, workers] :
       {Shape{1, 4}, Shape{2, 2}, Shape{2, 3}, Shape{5, 3}, Shape{4, 1}}) {
    Rig rig({.nodes = nodes, .workers = workers});
    rig.CreateAll(Generation(1));
    const TreePlan tree({nodes, workers});
    std::vector<int64_t> owned(nodes);
    std::vector<uint64_t> owned_bytes(nodes);
    for (const layout::Bucket& bucket : rig.layout().buckets()) {
      for (const layout::Shard& shard : bucket.shards) {
        for (const layout::Piece& piece : shard.pieces) {
          owned[shard.owner.value()] += piece.size();
          owned_bytes[shard.owner.value()] +=
              piece.size() * SizeOf(rig.layout().tensor(piece.tensor).dtype);
        }
      }
    }
    for (int64_t step = 1; step <= 3; ++step) {
      rig.ReduceAll(Step(step));
      rig.StartPublishAll(Step(step));
      rig.Settle();
    }
    uint64_t sent = 0;
    uint64_t received = 0;
    for (int node = 0; node < nodes; ++node) {
      const ByteCounts counts = rig.collective(node)->byte_counts();
      const uint64_t others = rig.layout().trainable_elements() - owned[node];
      const uint64_t formula = tree.num_ranges(NodeRank(node)) * others * 4 +
                               owned_bytes[node] * (nodes - 1);
      EXPECT_EQ(counts.payload_sent, 3 * formula) << nodes << "x" << workers;
      EXPECT_GE(counts.wire_sent, counts.payload_sent);
      EXPECT_EQ(counts.wire_sent, rig.links().sent_bytes(NodeRank(node)));
      sent += counts.wire_sent;
      received += counts.wire_received;
    }
    EXPECT_EQ(sent, received);
    EXPECT_EQ(sent > 0, nodes > 1);
  }
}

TEST(CollectiveTest, ReductionOfOneStepOverlapsPublishingOfAnother) {
  Rig rig({.nodes = 3, .workers = 2});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  const auto means = rig.Means();
  const std::vector<std::byte> expected = FillOwned(&rig, 3);
  rig.StartPublishAll(Step(1));
  rig.ReduceAll(Step(2));
  EXPECT_EQ(rig.weights(2), expected);
  EXPECT_EQ(rig.Means(), means);
}

TEST(CollectiveTest, AStalledPeerCostsAtMostTheWindows) {  // I23
  Rig rig(
      {.nodes = 2, .workers = 2, .bucket_bytes = 1, .buckets_in_flight = 2});
  rig.CreateAll(Generation(1));
  ASSERT_GT(rig.layout().buckets().size(), 10u);
  const uint64_t bytes = rig.device().private_bytes_in_use();
  EXPECT_LE(bytes, 2 * 2 * 2 * (2 * 2048 * sizeof(float) + 4096));
  // Node 1 never begins: node 0 waits with two buckets and no more memory.
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    rig.collective(0)->StartReduce(bucket.id, Step(1));
  }
  rig.Settle();
  EXPECT_TRUE(rig.observer(0).reduced.empty());
  EXPECT_EQ(rig.device().private_bytes_in_use(), bytes);
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    rig.collective(1)->StartReduce(bucket.id, Step(1));
  }
  rig.Settle();
  EXPECT_EQ(rig.observer(0).reduced.size(), rig.layout().buckets().size());
}

TEST(CollectiveTest, ALostPeerIsReportedOnceAndNothingFollows) {  // I23
  Rig rig({.nodes = 3, .workers = 2});
  rig.CreateAll(Generation(1));
  for (const int node : {0, 2}) {  // node 1 keeps them waiting
    for (const layout::Bucket& bucket : rig.layout().buckets()) {
      rig.collective(node)->StartReduce(bucket.id, Step(1));
    }
  }
  rig.Settle();
  rig.Kill(1);
  rig.Settle();
  rig.StartPublishAll(Step(1));  // ignored
  rig.Settle();
  for (const int node : {0, 2}) {
    ASSERT_EQ(rig.observer(node).failures.size(), 1u);
    EXPECT_THAT(rig.observer(node).failures[0],
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(rig.observer(node).reduced.empty());
  }
  rig.CancelAll();
}

// At any instant: what was posted fails, what is posted later waits until it
// is cancelled; in both cases at most one failure and nothing after it.
TEST(CollectiveTest, APeerMayGoAtAnyInstant) {  // I23
  int num_failures = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rig rig({.nodes = 3, .workers = 2, .seed = seed});
    rig.CreateAll(Generation(1));
    rig.StartReduceAll(Step(1));
    for (uint64_t i = 0; i < seed * 5; ++i) rig.world().Step();
    rig.Kill(1);
    rig.Settle();  // the observer checks what follows a failure
    for (const int node : {0, 2}) {
      EXPECT_LE(rig.observer(node).failures.size(), 1u) << "seed " << seed;
      num_failures += rig.observer(node).failures.size();
    }
    rig.CancelAll();
  }
  EXPECT_GT(num_failures, 0);  // both kinds were met
  EXPECT_LT(num_failures, 80);
}

TEST(CollectiveTest, AFailureInACallIsReportedAfterIt) {
  Rig rig({.nodes = 2});
  rig.CreateAll(Generation(1));
  rig.OnEachNode(
      [](Collective* c) { c->StartBroadcast(NodeRank(2), Step(0)); });
  rig.Settle();
  ASSERT_EQ(rig.observer(0).failures.size(), 1u);
  EXPECT_THAT(rig.observer(0).failures[0],
              StatusIs(absl::StatusCode::kInvalidArgument, "node 2 of 2"));
  // Posted twice: our own fault, found all the same.
  rig.CancelAll();
  rig.CreateAll(Generation(2));
  rig.OnEachNode([](Collective* c) {
    c->StartPublish(BucketId(0), Step(1));
    c->StartPublish(BucketId(0), Step(1));
  });
  rig.Settle();
  EXPECT_EQ(rig.observer(0).failures.size(), 1u);
}

TEST(CollectiveTest, AfterCancelMemoryIsTheCallersAgain) {  // I13, I19
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const int nodes = 1 + seed % 3;
    Rig rig({.nodes = nodes, .workers = 2, .seed = seed});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    const auto means = rig.Means();
    rig.StartReduceAll(Step(2));
    rig.StartPublishAll(Step(2));
    for (uint64_t i = 0; i < seed * 3; ++i) rig.world().Step();
    rig.CancelAll();  // the observer checks that no report follows
    for (int node = 0; node < nodes; ++node) {
      std::ranges::fill(rig.state_gradient(node), 7.0f);
      std::ranges::fill(rig.weights(node), std::byte{7});
      rig.collective(node)->StartReduce(BucketId(0), Step(3));  // ignored
    }
    rig.Settle();
    for (int node = 0; node < nodes; ++node) {
      EXPECT_TRUE(std::ranges::all_of(rig.state_gradient(node),
                                      [](float x) { return x == 7; }));
      EXPECT_TRUE(std::ranges::all_of(
          rig.weights(node), [](std::byte x) { return x == std::byte{7}; }));
    }
    // The step comes again in the next generation, with the same bits.
    rig.CreateAll(Generation(2));
    rig.ReduceAll(Step(2));
    EXPECT_EQ(rig.Means(), means) << "seed " << seed;
  }
}

TEST(CollectiveTest, TwoRunsOfOneSeedAreTheSame) {  // I25
  uint64_t hashes[2];
  for (uint64_t& hash : hashes) {
    Rig rig({.nodes = 3, .workers = 2, .seed = 5});
    rig.CreateAll(Generation(1));
    rig.ReduceAll(Step(1));
    hash = rig.world().trace_hash();
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(CollectiveTest, AModelWithoutTrainableTensorsNeedsNoBucket) {  // I4
  Rig rig(
      {.nodes = 2,
       .tensors = {{"f", {5}, kernels::DType::kFloat32, false}, {"e", {0}}}});
  rig.CreateAll(Generation(1));
  EXPECT_TRUE(rig.layout().buckets().empty());
  rig.ReduceAll(Step(1));
  rig.OnEachNode(
      [](Collective* c) { c->StartBroadcast(NodeRank(0), Step(0)); });
  rig.Settle();
  EXPECT_EQ(rig.observer(1).num_broadcast, 1);
}

TEST(CollectiveTest, RefusesPartsThatDoNotFit) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Rig rig({.nodes = 2, .workers = 2});
  const auto create = [&](auto change) {
    Parts parts = rig.PartsOf(0);
    change(&parts);
    return Collective::Create(parts, Generation(1)).status();
  };
  EXPECT_THAT(create([](Parts* p) { p->gradients.pop_back(); }),
              StatusIs(kInvalid, "1 gradient segments for 2"));
  EXPECT_THAT(
      create([](Parts* p) { p->gradients[1] = p->gradients[1].first(10); }),
      StatusIs(kInvalid, "local rank 1"));
  EXPECT_THAT(create([](Parts* p) { p->weights = p->weights.first(1); }),
              StatusIs(kInvalid, "weights"));
  EXPECT_THAT(create([](Parts* p) { p->state_gradient = {}; }),
              StatusIs(kInvalid, "state gradient"));
  EXPECT_THAT(create([](Parts* p) { p->buckets_in_flight = 0; }),
              StatusIs(kInvalid, "buckets_in_flight"));
  EXPECT_THAT(create([](Parts* p) { p->transport = nullptr; }),
              StatusIs(kInvalid, "no transport"));
  EXPECT_THAT(create([](Parts*) {}), base::IsOk());
}

TEST(CollectiveTest, RealThreadsGiveTheSameBits) {  // I22, I25
  Rig rig({.nodes = 1, .workers = 4});
  rig.CreateAll(Generation(1));
  rig.ReduceAll(Step(1));
  const auto means = rig.Means();
  const kernels::ExactSum norm = rig.Norm();

  base::MonotonicClock clock;
  auto loop = *base::EventLoop::Create(&clock);
  base::ThreadPool pool({.num_threads = 3}, loop.get());
  RecordingObserver observer;
  Parts parts = rig.PartsOf(0);
  parts.pool = &pool;
  parts.observer = &observer;
  auto collective = *Collective::Create(parts, Generation(2));
  for (int64_t step = 1; step <= 10; ++step) {
    std::ranges::fill(rig.state_gradient(0), 0.0f);
    observer.reduced.clear();
    observer.total = {};
    for (const layout::Bucket& bucket : rig.layout().buckets()) {
      collective->StartReduce(bucket.id, Step(step));
    }
    while (observer.reduced.size() < rig.layout().buckets().size()) {
      loop->RunOnce(absl::Seconds(1));
    }
    ASSERT_EQ(rig.Means(), means);
    ASSERT_EQ(observer.total.norm2, norm);
  }
  bool is_idle = false;
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    collective->StartReduce(bucket.id, Step(11));
  }
  observer.is_cancelled = true;
  collective->Cancel([&] { is_idle = true; });
  while (!is_idle) loop->RunOnce(absl::Seconds(1));
  std::ranges::fill(rig.state_gradient(0), 0.0f);  // no race with a task
}

}  // namespace
}  // namespace ballast::collective
