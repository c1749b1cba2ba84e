// Published weights that were damaged: whatever byte of whichever node, at any
// moment at which it may be found, the step ends with the bits of one that
// nothing happened to; or with DataLoss, if no node has them any more. I2, I25
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "proto/peer.pb.h"
#include "server/base/random.h"
#include "server/base/status_matchers.h"
#include "server/collective/chunk_source.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/delta_testing.h"
#include "server/collective/published_chunks.h"
#include "server/layout/layout.h"
#include "server/transport/pulls.h"

namespace ballast::collective {
namespace {

using base::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

size_t At(ChunkFault fault) { return static_cast<size_t>(fault); }
size_t At(HealKind kind) { return static_cast<size_t>(kind); }

uint64_t Sum(Job* job, HealKind kind) {
  uint64_t sum = 0;
  for (int node = 0; node < job->nodes(); ++node) {
    sum += job->rig().published(node).heals()[At(kind)];
  }
  return sum;
}

TEST(CollectiveHealTest, AnyChunkOfAnyNodeIsHealed) {
  for (const char* policy : kDeltaPolicies) {
    for (const int nodes : {2, 3, 4}) {
      const RigOptions options{
          .nodes = nodes, .exchange = policy, .heals = true};
      const size_t num_chunks = AllChunks(Rig(options).layout()).size();
      Job job(options);
      job.Publish(1);
      for (size_t i = 0; i < num_chunks; i += 3) {
        const ChunkId id = AllChunks(job.rig().layout())[i];
        const int node = static_cast<int>(i) % nodes;
        const bool is_own = id.owner.value() == node;
        const HealKind kind = is_own ? HealKind::kOwner : HealKind::kMember;
        const PublishedState before = job.rig().collective(node)->published();
        Flip(&job, node, id, i);
        const auto step = static_cast<int64_t>(i + 2);
        job.Publish(step);
        job.ExpectSameBits(absl::StrCat(policy, " chunk ", i));
        const PublishedState after = job.rig().collective(node)->published();
        EXPECT_EQ(after.heals[At(kind)], before.heals[At(kind)] + 1);
        EXPECT_EQ(after.faults[At(ChunkFault::kCopy)],
                  before.faults[At(ChunkFault::kCopy)] + 1);
        ASSERT_FALSE(job.rig().log(node).empty());
        EXPECT_THAT(job.rig().log(node).back(),
                    HasSubstr(absl::StrCat("has changed in the memory of node ",
                                           node)));
      }
      uint64_t sent = 0;
      uint64_t received = 0;
      for (int node = 0; node < nodes; ++node) {
        const ByteCounts counts = job.rig().collective(node)->byte_counts();
        sent += counts.heal_sent;
        received += counts.heal_received;
      }
      EXPECT_GT(sent, 0);
      EXPECT_EQ(sent, received);
    }
  }
}

// The control: what is not damaged is not healed, and costs nothing.
TEST(CollectiveHealTest, NothingMovesWhereNothingIsDamaged) {  // I21
  Job job(Small(3));
  for (int64_t step = 1; step <= 5; ++step) job.Publish(step);
  job.ExpectSame("sound");
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(job.rig().pulls(node).counters().asked, 0);
    EXPECT_TRUE(job.rig().log(node).empty());
  }
}

// Several nodes at once, a bit at a time, whenever the chunk has not been
// worked on yet; but never all copies of a chunk.
TEST(CollectiveHealTest, AnyMomentAnyNetworkSeveralAtOnce) {
  uint64_t num_healed = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const int nodes = static_cast<int>(2 + seed % 3);
    const uint64_t bucket_bytes[] = {1, 20'000, 100'000, 1 << 22};
    Job job({.nodes = nodes,
             .bucket_bytes = bucket_bytes[seed % 4],
             .chunk_bytes = 1'000 + seed % 7 * 3'000,
             .buckets_in_flight = static_cast<int>(1 + seed % 5),
             .batch_bytes = seed % 2 == 0 ? 1 : 1 << 20,
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
    for (int64_t step = 1; step <= 3; ++step) {
      job.StartPublish(step);
      std::ranges::fill(damaged, 0);
      for (int i = 0; i < 8; ++i) {
        for (uint64_t n = random.Below(30); n > 0; --n)
          job.rig().world().Step();
        const size_t which = random.Below(chunks.size());
        const int node = static_cast<int>(random.Below(nodes));
        const PublishedChunks::Entry& entry =
            job.rig().published(node).entry(chunks[which]);
        if (entry.version == WeightVersion(step) || ++damaged[which] >= nodes) {
          continue;
        }
        Flip(&job, node, chunks[which], seed + i);
      }
      job.EndPublish(step);
      job.ExpectSameBits(absl::StrCat("seed ", seed, " step ", step));
    }
    num_healed += Sum(&job, HealKind::kOwner) + Sum(&job, HealKind::kMember);
  }
  EXPECT_GT(num_healed, 500);
}

// More chunks than are healed at a time.
TEST(CollectiveHealTest, AWholeSegmentIsHealed) {
  for (const int node : {0, 2}) {
    RigOptions options = Small(3);
    options.chunk_bytes = 2048 * 4;
    options.tensors[1].shape = {60 * 2048};
    options.bucket_bytes = 1 << 22;
    Job job(options);
    job.Publish(1);
    const std::vector<ChunkId> chunks = AllChunks(job.rig().layout());
    ASSERT_GT(chunks.size(), 50);
    for (const ChunkId& id : chunks) Flip(&job, node, id, 5);
    job.Publish(2);
    job.ExpectSameBits("all");
    EXPECT_EQ(Sum(&job, HealKind::kOwner) + Sum(&job, HealKind::kMember),
              chunks.size());
  }
}

TEST(CollectiveHealTest, WithoutAnyCopyTheJobEndsAndNamesAll) {
  for (const int nodes : {2, 3, 4}) {
    Job job(Small(nodes));
    job.Publish(1);
    const ChunkId id = AllChunks(job.rig().layout())[3];
    for (int node = 0; node < nodes; ++node) Flip(&job, node, id, node);
    job.Publish(2);
    const auto failures = job.Failures();
    ASSERT_FALSE(failures.empty());
    EXPECT_EQ(failures[0].first, id.owner.value());
    EXPECT_THAT(failures[0].second,
                StatusIs(kDataLoss, "no node has the bits of version 1"));
    for (int node = 0; node < nodes; ++node) {
      EXPECT_THAT(std::string(failures[0].second.message()),
                  HasSubstr(absl::StrCat("node ", node)));
    }
    job.rig().CancelAll();
  }
}

// Without pulls everything is as it was: found, and the end.
TEST(CollectiveHealTest, WithoutPullsTheJobEnds) {
  RigOptions options = Small(3);
  options.heals = false;
  Job job(options);
  job.Publish(1);
  Flip(&job, 1, AllChunks(job.rig().layout())[0], 1);
  job.Publish(2);
  ASSERT_FALSE(job.Failures().empty());
  EXPECT_THAT(job.Failures()[0].second, StatusIs(kDataLoss, "has changed in"));
  job.rig().CancelAll();
}

TEST(CollectiveHealTest, AnotherReferenceAndADamagedDeltaAreHealed) {
  Job job(Small(3));
  job.Publish(1);
  // Node 1 changes its copy and believes in it.
  for (const ChunkId& id : AllChunks(job.rig().layout())) {
    if (id.owner != NodeRank(1)) Flip(&job, 1, id, 1);
  }
  job.rig().published(1).Initialize(job.rig().weights(1), WeightVersion(1));
  job.Publish(2);
  job.ExpectSameBits("reference");
  EXPECT_GT(job.rig().published(1).faults()[At(ChunkFault::kReference)], 0);

  int num_found = 0;
  for (int at = 0; at < 1200; at += 37) {
    RigOptions options = Meddled(1, kPublishPhase, [at](const auto& spec) {
      for (const auto& part : spec.sends) {
        auto* const bytes = const_cast<std::byte*>(part.bytes.data());
        if (part.bytes.size() > static_cast<size_t>(at)) {
          bytes[at] ^= std::byte{0x20};
          break;
        }
      }
    });
    options.heals = true;
    Job damaged(options);
    damaged.Publish(1);
    damaged.ExpectSameBits(absl::StrCat("byte ", at));
    num_found += Sum(&damaged, HealKind::kMember) > 0;
  }
  EXPECT_GT(num_found, 15);  // some are padding
}

TEST(CollectiveHealTest, ADamagedNoteOfTheOwnerIsMendedToo) {
  Job job(Small(3));
  job.Publish(1);
  const ChunkId id{BucketId(0), NodeRank(0), 0};
  job.rig().published(0).entry(id).checksum ^= 4;
  job.Publish(2);
  job.ExpectSameBits("note");
  EXPECT_EQ(Sum(&job, HealKind::kOwner), 1);
}

// A comparison's own bits; and those that it brings, which are not believed.
TEST(CollectiveHealTest, AComparisonIsHealed) {
  constexpr int64_t kElement = 5;
  for (const uint32_t phase : {kPublishPhase, kResyncPhase}) {
    Job* job = nullptr;
    bool is_done = false;
    const auto meddle = [&](const auto& spec) {
      if (is_done || spec.bucket != BucketId(0)) return;
      is_done = true;
      job->rig().weights(0)[OffsetOf(job->rig().layout(), kElement)] ^=
          std::byte{1};
    };
    RigOptions options = Meddled(0, phase, meddle);
    options.tensors[0].shape = {2048};
    options.bucket_bytes = 1 << 20;
    options.exchange += " weights.resync_every_steps=200";
    options.heals = true;
    Job made(options);
    job = &made;
    ASSERT_EQ(OwnerOf(made.rig().layout(), kElement), 0);
    made.Publish(200);
    made.Publish(201);  // what was damaged while it was sent is found here
    made.ExpectSameBits(absl::StrCat("phase ", phase));
    EXPECT_GT(Sum(&made, HealKind::kOwner), 0);
  }
}

TEST(CollectiveHealTest, WhatComesIsNotBelieved) {  // I27
  for (const int nodes : {2, 3}) {
    int num_sent = 0;
    RigOptions options = Small(nodes);
    // Node 0 is asked first by node 1, the owner.
    options.wrap_transport =
        Meddled(0, transport::kPullPhase, [&](const auto& spec) {
          for (const auto& part : spec.sends) {
            ++num_sent;
            auto* const bytes = const_cast<std::byte*>(part.bytes.data());
            bytes[num_sent % 40] ^= std::byte{1};
          }
        }).wrap_transport;
    Job job(options);
    job.Publish(1);
    const ChunkId id{BucketId(0), NodeRank(1), 0};
    Flip(&job, 1, id, 1);
    job.Publish(2);
    EXPECT_EQ(num_sent, 1);
    if (nodes == 3) {
      job.ExpectSameBits("from node 2");
      EXPECT_THAT(job.rig().log(1).back(), HasSubstr("the bits of node 2"));
      continue;
    }
    ASSERT_FALSE(job.Failures().empty());
    EXPECT_THAT(job.Failures()[0].second, StatusIs(kDataLoss, "node 0: sent"));
    job.rig().CancelAll();
  }
}

// Of a node that is not the owner only what the owner told is taken: here the
// owner loses its copy, and another node believes in bits of its own.
TEST(CollectiveHealTest, BitsThatTheOwnerDidNotTellAreNotTaken) {  // I25
  for (const bool is_other_wrong : {false, true}) {
    Job job(Small(3));
    job.Publish(1);
    const ChunkId id{BucketId(0), NodeRank(0), 0};
    Flip(&job, 1, id, 1);
    bool is_silent = true;
    job.rig().frames().SetFilter(
        [&](NodeRank from, NodeRank, const std::string& frame) {
          v1::PeerFrame parsed;
          return is_silent && from.value() == 1 &&
                 parsed.ParseFromString(frame) && parsed.has_pull();
        });
    job.StartPublish(2);
    const auto is_at_2 = [&](int node) {
      return job.rig().published(node).entry(id).version == WeightVersion(2);
    };
    while (!is_at_2(0) || !is_at_2(2)) job.rig().world().Step();
    Flip(&job, 0, id, 2);
    if (is_other_wrong) {
      Flip(&job, 2, id, 3);
      job.rig().published(2).entry(id).checksum =
          job.rig().published(2).Checksum(id, job.rig().weights(2));
    }
    is_silent = false;
    job.EndPublish(2);
    if (!is_other_wrong) {
      EXPECT_EQ(Sum(&job, HealKind::kMember), 1);
      EXPECT_THAT(job.rig().log(1).back(), HasSubstr("the bits of node 2"));
      continue;
    }
    ASSERT_FALSE(job.Failures().empty());
    EXPECT_THAT(job.Failures()[0].second,
                StatusIs(kDataLoss, "node 2: has other bits of that version"));
    EXPECT_EQ(Sum(&job, HealKind::kMember), 0);
    job.rig().CancelAll();
  }
}

TEST(CollectiveHealTest, ASilentNodeIsPassedOver) {  // I23
  RigOptions options = Small(3);
  options.pull_timeout = absl::Seconds(3);
  Job job(options);
  job.Publish(1);
  job.rig().frames().SetFilter([](NodeRank, NodeRank to, const std::string&) {
    return to.value() == 0;
  });
  Flip(&job, 1, {BucketId(0), NodeRank(1), 0}, 1);
  EXPECT_EQ(job.rig().collective(1)->WaitingFor(), "");
  job.StartPublish(2);
  job.rig().world().RunFor(absl::Seconds(1));
  EXPECT_THAT(job.rig().collective(1)->WaitingFor(),
              HasSubstr("node 0 has not sent version 1 of 1 damaged chunks, "
                        "among them elements ["));
  job.EndPublish(2);
  EXPECT_EQ(job.rig().collective(1)->WaitingFor(), "");
  job.ExpectSameBits("passed over");
  EXPECT_THAT(job.rig().log(1).back(), HasSubstr("the bits of node 2"));
  // And if all are silent twice, that is said.
  job.rig().frames().SetFilter(
      [](NodeRank, NodeRank, const std::string&) { return true; });
  Flip(&job, 1, {BucketId(0), NodeRank(1), 0}, 1);
  job.Publish(3);
  ASSERT_FALSE(job.Failures().empty());
  const absl::Status why = job.Failures()[0].second;
  EXPECT_THAT(why, StatusIs(kDataLoss, "node 2 has not answered within 3s"));
  const std::vector<std::string> told =
      absl::StrSplit(std::string(why.message()), "has not answered");
  EXPECT_EQ(told.size(), 1 + 2 * 2) << why;
  job.rig().CancelAll();
}

TEST(CollectiveHealTest, ASilentNodeMayAnswerLater) {  // I23
  RigOptions options = Small(2);
  options.pull_timeout = absl::Seconds(3);
  Job job(options);
  job.Publish(1);
  bool is_silent = true;
  job.rig().frames().SetFilter([&](NodeRank, NodeRank to, const std::string&) {
    return is_silent && to.value() == 0;
  });
  Flip(&job, 1, {BucketId(0), NodeRank(1), 0}, 1);
  job.StartPublish(2);
  job.rig().world().RunFor(absl::Seconds(4));
  is_silent = false;
  job.EndPublish(2);
  job.ExpectSameBits("asked again");
  EXPECT_THAT(job.rig().log(1).back(), HasSubstr("the bits of node 0"));
}

TEST(CollectiveHealTest, MayBeCancelledAtAnyMoment) {  // I28
  for (int events = 0; events < 400; events += 7) {
    Job job(Small(3));
    job.Publish(1);
    for (const ChunkId& id : AllChunks(job.rig().layout())) {
      Flip(&job, static_cast<int>(id.index + id.bucket.value()) % 3, id, 1);
    }
    job.StartPublish(2);
    for (int i = 0; i < events; ++i) job.rig().world().Step();
    job.rig().CancelAll();
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(job.rig().pulls(node).num_asking(), 0);
    }
    job.rig().CreateAll(Generation(2));  // and what is left is let go of
  }
}

TEST(CollectiveHealTest, ANodeMayDieMeanwhile) {  // I23
  for (int events = 0; events < 300; events += 11) {
    Job job(Small(3));
    job.Publish(1);
    Flip(&job, 1, {BucketId(0), NodeRank(1), 0}, 1);
    Flip(&job, 2, {BucketId(0), NodeRank(1), 0}, 2);
    job.StartPublish(2);
    for (int i = 0; i < events; ++i) job.rig().world().Step();
    job.rig().Kill(0);
    // What is asked of it is asked again until membership gives it up.
    job.rig().world().RunFor(absl::Minutes(1));
    job.rig().CancelAll();
  }
}

// ---- When votes differ. ----

void Compare(Job* job) {
  job->rig().OnEachNode(
      [](Collective* collective) { collective->StartComparison(); });
  job->rig().Settle();
}

TEST(CollectiveHealTest, ComparedNodesShowTheSame) {
  for (const int nodes : {2, 3, 4}) {
    Job job(Small(nodes));
    job.Publish(1);
    uint64_t num_changed = 0;
    for (const ChunkId& id : AllChunks(job.rig().layout())) {
      if (id.owner == NodeRank(1)) continue;
      Flip(&job, 1, id, 1);
      ++num_changed;
    }
    job.rig().published(1).Initialize(job.rig().weights(1), WeightVersion(1));
    EXPECT_NE(job.rig().published(1).digest(), job.rig().published(0).digest());
    Compare(&job);
    for (int node = 0; node < nodes; ++node) {
      EXPECT_EQ(job.rig().observer(node).num_compared, 1);
    }
    job.ExpectSameBits("compared");
    EXPECT_EQ(Sum(&job, HealKind::kVote), num_changed);
    job.Publish(2);
    job.ExpectSameBits("and the next version");
  }
}

// The owner is right about what is its own: its masters go on from there.
TEST(CollectiveHealTest, TheOwnersBitsCount) {
  Job job(Small(3));
  job.Publish(1);
  Flip(&job, 0, {BucketId(0), NodeRank(0), 0}, 1);
  job.rig().published(0).Initialize(job.rig().weights(0), WeightVersion(1));
  const std::vector<std::byte> owners = job.rig().weights(0);
  Compare(&job);
  for (const int node : {1, 2}) {
    EXPECT_TRUE(job.rig().weights(node) == owners);
    EXPECT_EQ(job.rig().published(node).digest(),
              job.rig().published(0).digest());
  }
}

TEST(CollectiveHealTest, ADamagedDigestIsMadeAnew) {
  Job job(Small(2));
  job.Publish(1);
  const uint64_t digest = job.rig().published(0).digest();
  job.rig().published(1).entry({BucketId(0), NodeRank(1), 0}).checksum ^= 1;
  job.rig().published(1).Seal(BucketId(0));
  job.rig().published(1).entry({BucketId(0), NodeRank(1), 0}).checksum ^= 1;
  EXPECT_NE(job.rig().published(1).digest(), digest);
  Compare(&job);
  EXPECT_EQ(job.rig().published(1).digest(), digest);
  EXPECT_EQ(Sum(&job, HealKind::kVote), 0);
}

TEST(CollectiveHealTest, WithoutDeltasThereIsNothingToCompare) {
  for (const int nodes : {1, 2}) {
    Job job({.nodes = nodes,
             .exchange = nodes == 1 ? "delta4" : "zeropp",
             .heals = true});
    Compare(&job);
    for (int node = 0; node < nodes; ++node) {
      EXPECT_EQ(job.rig().observer(node).num_compared, 1);
      EXPECT_EQ(job.rig().pulls(node).counters().asked, 0);
    }
  }
}

TEST(CollectiveHealTest, AComparisonThatCannotBeMadeIsAFailure) {  // I23
  RigOptions options = Small(2);
  options.pull_timeout = absl::Seconds(3);
  Job job(options);
  job.Publish(1);
  job.rig().frames().SetFilter(
      [](NodeRank, NodeRank, const std::string&) { return true; });
  Compare(&job);
  EXPECT_EQ(job.Failures().size(), 2);
  for (const auto& [node, why] : job.Failures()) {
    EXPECT_THAT(why, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              "has not told its checksums within 3s"));
  }
  job.rig().CancelAll();
}

// ---- What is answered. ----

// As a node that asks for anything.
class Asker {
 public:
  Asker(Job* job, const transport::PullKey& key, size_t bytes) : into_(bytes) {
    const auto id = job->rig().pulls(1).Pull(
        NodeRank(0), key, into_,
        [this](const absl::Status& status) { done.push_back(status); });
    EXPECT_THAT(id, base::IsOk());
  }
  std::vector<absl::Status> done;

 private:
  std::vector<std::byte> into_;
};

transport::PullKey KeyOf(const ChunkId& id, int64_t version) {
  return {.generation = Generation(1),
          .version = WeightVersion(version),
          .bucket = id.bucket,
          .owner = id.owner,
          .kind = kPullChunk,
          .chunk = static_cast<uint32_t>(id.index)};
}

TEST(CollectiveHealTest, HostileKeysAreRefused) {  // I27
  Job job(Small(2));
  job.Publish(1);
  const ChunkId id{BucketId(0), NodeRank(0), 0};
  const size_t bytes = 16 + job.rig().published(0).BytesOf(id);
  struct Case {
    const char* says;
    void (*change)(transport::PullKey*);
  };
  const Case cases[] = {
      {"generation 7 is asked for",
       [](auto* key) { key->generation = Generation(7); }},
      {"no bucket -1", [](auto* key) { key->bucket = BucketId(-1); }},
      {"no bucket 1000", [](auto* key) { key->bucket = BucketId(1000); }},
      {"no owner -1", [](auto* key) { key->owner = NodeRank(-1); }},
      {"no owner 2", [](auto* key) { key->owner = NodeRank(2); }},
      {"no chunk 99 of", [](auto* key) { key->chunk = 99; }},
      {"no chunk 4294967295 of", [](auto* key) { key->chunk = ~0u; }},
      {"has version 1 instead of 0",
       [](auto* key) { key->version = WeightVersion(0); }},
      {"the marks of node 1 are its own",
       [](auto* key) {
         key->kind = kPullMarks;
         key->owner = NodeRank(1);
       }},
      {"nothing serves", [](auto* key) { key->kind = 77; }},
  };
  for (const Case& c : cases) {
    transport::PullKey key = KeyOf(id, 1);
    c.change(&key);
    Asker asker(&job, key, bytes);
    job.rig().Settle();
    ASSERT_EQ(asker.done.size(), 1) << c.says;
    EXPECT_THAT(std::string(asker.done[0].message()), HasSubstr(c.says));
  }
  Asker sound(&job, KeyOf(id, 1), bytes);  // the control
  job.rig().Settle();
  EXPECT_THAT(sound.done, ElementsAre(absl::OkStatus()));
  Asker other_size(&job, KeyOf(id, 1), bytes - 1);
  job.rig().Settle();
  ASSERT_EQ(other_size.done.size(), 1);
  EXPECT_EQ(other_size.done[0].code(), kDataLoss);
  job.Publish(2);
  job.ExpectSame("unmoved");
}

TEST(CollectiveHealTest, ALaterVersionIsWaitedForAndDamageNotHandedOn) {
  Job job(Small(3));
  job.Publish(1);
  const ChunkId id{BucketId(0), NodeRank(0), 0};
  const size_t bytes = 16 + job.rig().published(0).BytesOf(id);
  Asker later(&job, KeyOf(id, 2), bytes);
  job.rig().world().RunFor(absl::Seconds(5));
  EXPECT_TRUE(later.done.empty());
  job.Publish(2);
  EXPECT_THAT(later.done, ElementsAre(absl::OkStatus()));
  job.ExpectSame("served");
  Flip(&job, 0, id, 1);
  Asker damaged(&job, KeyOf(id, 2), bytes);
  job.rig().world().RunFor(absl::Seconds(5));
  ASSERT_EQ(damaged.done.size(), 1);
  EXPECT_THAT(damaged.done[0], StatusIs(kDataLoss, "changed in memory too"));
}

TEST(CollectiveHealTest, ManyAreServedAndTooManyRefused) {  // I27
  Job job(Small(2));
  job.Publish(1);
  const ChunkId id{BucketId(0), NodeRank(0), 0};
  const size_t bytes = 16 + job.rig().published(0).BytesOf(id);
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 200; ++i) {
    askers.push_back(std::make_unique<Asker>(&job, KeyOf(id, 1), bytes));
  }
  job.rig().Settle();
  for (const auto& asker : askers) {
    EXPECT_THAT(asker->done, ElementsAre(absl::OkStatus()));
  }
}

}  // namespace
}  // namespace ballast::collective
