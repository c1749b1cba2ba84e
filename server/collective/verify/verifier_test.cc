// Published weights that change between the publishing of a step and the vote
// on the next: found and healed before the bucket is reported, so before any
// commit. I2, I25
#include "server/collective/verify/verifier.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/compute_pool.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/context.h"
#include "server/collective/delta_testing.h"
#include "server/collective/published_chunks.h"
#include "server/layout/layout.h"

namespace ballast::collective {
namespace {

using base::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

uint64_t Faults(Job* job, int node, ChunkFault fault) {
  return job->rig().published(node).faults()[static_cast<size_t>(fault)];
}
uint64_t Heals(Job* job, int node, HealKind kind) {
  return job->rig().published(node).heals()[static_cast<size_t>(kind)];
}
uint64_t Asked(Job* job) {
  uint64_t asked = 0;
  for (int node = 0; node < job->nodes(); ++node) {
    asked += job->rig().pulls(node).counters().asked;
  }
  return asked;
}

// A member's copy or an owner's: when all buckets are reduced, which is before
// any vote, the bits of the version before are there again.
TEST(VerifierTest, WhatChangedIsHealedBeforeTheBucketIsReduced) {
  for (const char* policy :
       {kDeltaPolicies[0], kDeltaPolicies[3], "delta4 partition_nodes=2"}) {
    for (const int nodes : {2, 4}) {
      Job job({.nodes = nodes, .exchange = policy, .heals = true});
      const std::vector<ChunkId> chunks = AllChunks(job.rig().layout());
      job.Publish(1);
      for (size_t i = 0; i < chunks.size(); i += 3) {
        const int node = static_cast<int>(i) % nodes;
        const bool is_own = job.rig().layout().topology().OwnerOf(
                                NodeRank(node)) == chunks[i].owner;
        const HealKind kind = is_own ? HealKind::kOwner : HealKind::kMember;
        const uint64_t found = Faults(&job, node, ChunkFault::kVerify);
        const uint64_t healed = Heals(&job, node, kind);
        Flip(&job, node, chunks[i], i);
        const auto step = static_cast<int64_t>(i + 2);
        job.rig().ReduceAll(Step(step));
        const std::string what = absl::StrCat(policy, " chunk ", i);
        job.ExpectSameBits(what);  // of the version before
        EXPECT_EQ(Faults(&job, node, ChunkFault::kVerify), found + 1) << what;
        EXPECT_EQ(Heals(&job, node, kind), healed + 1) << what;
        ASSERT_FALSE(job.rig().log(node).empty());
        EXPECT_THAT(job.rig().log(node).back(),
                    HasSubstr("found before the vote; healed with the bits"));
        job.Publish(step);
        job.ExpectSameBits(what);
        EXPECT_EQ(Faults(&job, node, ChunkFault::kCopy), 0) << what;
      }
    }
  }
}

// The control: a byte that changes once its chunk was read is found when the
// chunk's next version is made, after the commit.
TEST(VerifierTest, WhatChangesLaterIsFoundAfterTheCommit) {
  Job job(Small(3));
  job.Publish(1);
  job.rig().ReduceAll(Step(2));
  Flip(&job, 1, AllChunks(job.rig().layout())[0], 1);
  job.Publish(2);
  job.ExpectSameBits("later");
  EXPECT_EQ(Faults(&job, 1, ChunkFault::kVerify), 0);
  EXPECT_EQ(Faults(&job, 1, ChunkFault::kCopy), 1);
}

TEST(VerifierTest, EachChunkIsReadOnceAStepAndNothingMoves) {  // I21
  Job job(Small(3));
  const size_t num_chunks = AllChunks(job.rig().layout()).size();
  for (int64_t step = 1; step <= 4; ++step) {
    job.rig().ReduceAll(Step(step));
    job.Publish(step);
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(job.rig().collective(node)->published().num_verified,
                step * num_chunks);
    }
  }
  job.ExpectSame("sound");
  EXPECT_EQ(Asked(&job), 0);
}

TEST(VerifierTest, WhatHasNoChecksumsIsNotRead) {
  for (const auto& [nodes, policy] : std::vector<std::pair<int, const char*>>{
           {1, "delta4"}, {2, "zeropp"}, {2, "exact"}}) {
    Job job({.nodes = nodes, .exchange = policy, .heals = true});
    job.rig().ReduceAll(Step(1));
    EXPECT_EQ(job.rig().published(0).num_verified(), 0) << policy;
  }
}

TEST(VerifierTest, ABucketWaitsForItsBitsAndTheOthersDoNot) {
  RigOptions options = Small(2);
  options.bucket_bytes = 8192;
  Job job(options);
  const size_t num_buckets = job.rig().layout().buckets().size();
  ASSERT_GT(num_buckets, 3);
  job.Publish(1);
  bool is_lost = true;
  job.rig().frames().SetFilter(
      [&](NodeRank, NodeRank, const std::string&) { return is_lost; });
  Flip(&job, 1, {BucketId(2), NodeRank(1), 0}, 1);
  job.rig().StartReduceAll(Step(2));
  job.rig().world().RunFor(absl::Seconds(1));
  EXPECT_EQ(job.rig().observer(0).reduced.size(), num_buckets);
  EXPECT_EQ(job.rig().observer(1).reduced.size(), num_buckets - 1);
  EXPECT_FALSE(std::ranges::count(job.rig().observer(1).reduced, 2));
  EXPECT_THAT(job.rig().collective(1)->WaitingFor(),
              HasSubstr("node 0 has not sent version 1 of 1 damaged chunks"));
  is_lost = false;
  job.rig().Settle();
  EXPECT_EQ(job.rig().observer(1).reduced.back(), 2);
  job.ExpectSameBits("waited");
}

TEST(VerifierTest, ADamagedNoteIsMended) {
  for (const int node : {0, 1}) {
    Job job(Small(3));
    job.Publish(1);
    const uint64_t digest = job.rig().published(2).digest();
    job.rig().published(node).entry({BucketId(0), NodeRank(0), 0}).checksum ^=
        4;
    job.rig().published(node).Seal(BucketId(0));
    EXPECT_NE(job.rig().published(node).digest(), digest);
    job.rig().ReduceAll(Step(2));
    EXPECT_EQ(job.rig().published(node).digest(), digest) << node;
    job.ExpectSameBits("note");
  }
}

TEST(VerifierTest, WithoutAnyCopyTheJobEnds) {
  for (const int nodes : {2, 3}) {
    Job job(Small(nodes));
    job.Publish(1);
    for (int node = 0; node < nodes; ++node) {
      Flip(&job, node, AllChunks(job.rig().layout())[3], node);
    }
    job.rig().StartReduceAll(Step(2));
    job.rig().Settle();
    ASSERT_THAT(job.Failures(), testing::SizeIs(nodes));
    for (const auto& [node, why] : job.Failures()) {
      EXPECT_THAT(why, StatusIs(kDataLoss, "no node has the bits of version 1"))
          << node;
    }
    job.rig().CancelAll();
  }
}

TEST(VerifierTest, MayBeCancelledAtAnyMoment) {  // I28
  for (int events = 0; events < 400; events += 7) {
    Job job(Small(3));
    job.Publish(1);
    for (const ChunkId& id : AllChunks(job.rig().layout())) {
      Flip(&job, static_cast<int>(id.index + id.bucket.value()) % 3, id, 1);
    }
    job.rig().StartReduceAll(Step(2));
    for (int i = 0; i < events; ++i) job.rig().world().Step();
    job.rig().CancelAll();
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(job.rig().pulls(node).num_asking(), 0);
    }
    // The step is repeated, and what is still damaged is found.
    job.rig().CreateAll(Generation(2));
    for (int node = 0; node < 3; ++node) job.rig().observer(node) = {};
    job.rig().ReduceAll(Step(2));
    job.Publish(2);
    job.ExpectSameBits(absl::StrCat("after ", events, " events"));
  }
}

// Several nodes at once, a bit at a time, while buckets are reduced and while
// they are published; but never all copies of a chunk.
TEST(VerifierTest, AnyMomentAnyNetworkSeveralAtOnce) {
  uint64_t num_early = 0;
  uint64_t num_late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const int nodes = static_cast<int>(2 + seed % 3);
    Job job({.nodes = nodes,
             .bucket_bytes = seed % 2 == 0 ? 20'000u : 1u << 22,
             .chunk_bytes = 1'000 + seed % 7 * 3'000,
             .buckets_in_flight = static_cast<int>(1 + seed % 5),
             .seed = seed,
             .faults = {.max_delay = absl::Milliseconds(2),
                        .loss = 0.2,
                        .duplicate = 0.2,
                        .reorder = 0.2},
             .exchange = kDeltaPolicies[seed % 5],
             .heals = true});
    const std::vector<ChunkId> chunks = AllChunks(job.rig().layout());
    base::SeededRandom random(seed);
    std::vector<int> damaged(chunks.size());
    const auto flip_some = [&](int64_t step) {
      for (int i = 0; i < 6; ++i) {
        for (uint64_t n = random.Below(40); n > 0; --n)
          job.rig().world().Step();
        const size_t which = random.Below(chunks.size());
        const int node = static_cast<int>(random.Below(nodes));
        if (job.rig().published(node).entry(chunks[which]).version ==
                WeightVersion(step) ||
            ++damaged[which] >= nodes) {
          continue;
        }
        Flip(&job, node, chunks[which], seed + i);
      }
    };
    for (int64_t step = 1; step <= 3; ++step) {
      std::ranges::fill(damaged, 0);
      job.rig().StartReduceAll(Step(step));
      flip_some(step);
      job.rig().Settle();
      job.StartPublish(step);
      flip_some(step);
      job.EndPublish(step);
      job.ExpectSameBits(absl::StrCat("seed ", seed, " step ", step));
    }
    for (int node = 0; node < nodes; ++node) {
      num_early += Faults(&job, node, ChunkFault::kVerify);
      num_late += Faults(&job, node, ChunkFault::kCopy);
    }
  }
  EXPECT_GT(num_early, 50);
  EXPECT_GT(num_late, 50);
}

// ---- Alone, in a pool that does what it is told. ----

class HoldingPool final : public base::ComputePool {
 public:
  explicit HoldingPool(int num_threads) : num_threads_(num_threads) {}
  int num_threads() const override { return num_threads_; }
  void Submit(base::Task* task) override { tasks.push_back(task); }
  void RunNext() {
    base::Task* const task = tasks.front();
    tasks.pop_front();
    task->Run(0);
    task->Done();
  }

  std::deque<base::Task*> tasks;

 private:
  const int num_threads_;
};

class Failures final : public OperationObserver {
 public:
  void OnBucketReduced(BucketId, const Reduced&) override {}
  void OnBucketPublished(BucketId) override {}
  void OnBucketCompared(BucketId) override {}
  void OnAllBroadcast() override {}
  void OnOperationFailed(const absl::Status& status) override {
    all.push_back(status);
  }
  std::vector<absl::Status> all;
};

struct Alone {
  explicit Alone(int num_threads) : pool(num_threads), job(Small(2)) {
    Parts parts = job.rig().PartsOf(0);
    parts.pool = &pool;
    context.emplace(parts, Generation(2), &failures);
    verifier.emplace(&*context, [this](BucketId bucket, const Reduced&) {
      reduced.push_back(bucket.value());
    });
  }

  HoldingPool pool;
  Job job;
  Failures failures;
  std::vector<int> reduced;
  std::optional<Context> context;
  std::optional<Verifier> verifier;
};

TEST(VerifierTest, KeepsHalfOfThePoolFree) {
  for (const auto& [threads, most] :
       std::vector<std::pair<int, size_t>>{{1, 1}, {2, 1}, {3, 1}, {8, 4}}) {
    Alone alone(threads);
    size_t num_read = 0;
    for (const layout::Bucket& bucket : alone.job.rig().layout().buckets()) {
      alone.verifier->Start(bucket.id);
    }
    const size_t num_chunks = AllChunks(alone.job.rig().layout()).size();
    ASSERT_GT(num_chunks, most);
    for (; !alone.pool.tasks.empty(); ++num_read) {
      EXPECT_EQ(alone.pool.tasks.size(), std::min(most, num_chunks - num_read));
      alone.pool.RunNext();
    }
    EXPECT_EQ(num_read, num_chunks);
  }
}

TEST(VerifierTest, ReportsWhenBothAreDoneWhicheverIsFirst) {
  Alone alone(1);
  const std::vector<int>& reduced = alone.reduced;
  alone.verifier->Start(BucketId(0));
  alone.verifier->Report(BucketId(0), {});
  while (!alone.pool.tasks.empty()) {
    EXPECT_THAT(reduced, IsEmpty());
    alone.pool.RunNext();
  }
  EXPECT_THAT(reduced, ElementsAre(0));
  alone.verifier->Start(BucketId(0));  // of the next step
  while (!alone.pool.tasks.empty()) alone.pool.RunNext();
  EXPECT_THAT(reduced, ElementsAre(0));
  alone.verifier->Report(BucketId(0), {});
  EXPECT_THAT(reduced, ElementsAre(0, 0));
}

TEST(VerifierTest, WithoutAWatchDamageIsAFailure) {
  Alone alone(1);
  Flip(&alone.job, 0, {BucketId(0), NodeRank(1), 0}, 1);
  alone.verifier->Start(BucketId(0));
  alone.verifier->Report(BucketId(0), {});
  while (!alone.pool.tasks.empty()) alone.pool.RunNext();
  ASSERT_EQ(alone.failures.all.size(), 1);
  EXPECT_THAT(alone.failures.all[0],
              StatusIs(kDataLoss, "has changed in the memory of node 0"));
  EXPECT_THAT(alone.reduced, IsEmpty());
}

}  // namespace
}  // namespace ballast::collective
