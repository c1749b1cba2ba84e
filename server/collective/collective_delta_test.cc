// Weights as differences from their published copy: what every node publishes,
// against whole tensors without nodes, buckets or cells; that an error is sent
// later and not kept; and that no byte that changed goes unseen.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "server/base/status_matchers.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/delta_testing.h"
#include "server/collective/published_chunks.h"
#include "server/transport/transport.h"

namespace ballast::collective {
namespace {

using base::StatusIs;
using kernels::DType;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST(CollectiveDeltaTest, EveryNodePublishesWhatTheFormatSays) {  // I2, I3, I25
  for (const char* policy : kDeltaPolicies) {
    for (const int nodes : {2, 3, 5}) {
      Job job({.nodes = nodes, .exchange = policy});
      std::vector<std::byte> before = job.Expected();
      for (int64_t step = 1; step <= 4; ++step) {
        job.Publish(step);
        job.ExpectSame(policy);
        EXPECT_NE(job.Expected(), before);  // something moved
        before = job.Expected();
      }
    }
  }
}

TEST(CollectiveDeltaTest, BitsDoNotDependOnCutsOrderOrTiming) {  // I9, I25
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const uint64_t bucket_bytes[] = {1, 20'000, 100'000, 1 << 22};
    Job job({.nodes = static_cast<int>(2 + seed % 3),
             .bucket_bytes = bucket_bytes[seed % 4],
             .chunk_bytes = seed * 3'000,
             .buckets_in_flight = static_cast<int>(1 + seed % 5),
             .batch_bytes = seed % 2 == 0 ? 1 : 1 << 20,
             .seed = seed,
             .faults = {.max_delay = absl::Milliseconds(2),
                        .loss = 0.2,
                        .reorder = 0.2},
             .exchange = kDeltaPolicies[seed % 5]});
    for (int64_t step = 1; step <= 3; ++step) job.Publish(step);
    job.ExpectSame("seed " + std::to_string(seed));
  }
}

// What follows from what was shown before, in double: the published value is
// r plus the nearest of 15 multiples of absmax / 7, cast.
TEST(CollectiveDeltaTest, FollowsAModelInDoublePrecision) {  // I11
  constexpr int64_t kCount = 50'257;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Job job({.nodes = 3,
             .tensors = {{"w", {kCount}, dtype}},
             .exchange = "delta4"});
    const double ulp = dtype == DType::kFloat32 ? 0x1p-23 : 0x1p-8;
    int64_t num_ties = 0;
    for (int64_t step = 1; step <= 30; ++step) {
      const std::vector<float> before = job.model().published(0);
      job.Publish(step);
      job.ExpectSame("step " + std::to_string(step));
      const std::vector<float> after = job.model().published(0);
      const std::vector<float>& master = job.model().master(0);
      for (int64_t begin = 0; begin < kCount; begin += 2048) {
        const int64_t end = std::min(begin + 2048, kCount);
        double absmax = 0;
        for (int64_t e = begin; e < end; ++e) {
          absmax = std::max(absmax, std::abs(double{master[e]} - before[e]));
        }
        const double scale = absmax / 7;
        for (int64_t e = begin; e < end; ++e) {
          const double steps = (double{master[e]} - before[e]) / scale;
          const double expected = before[e] + std::round(steps) * scale;
          const double slack = ulp * std::abs(expected) + 1e-9;
          const double error = std::abs(after[e] - expected);
          const bool is_tie =
              std::abs(std::abs(steps - std::trunc(steps)) - 0.5) < 1e-3;
          num_ties += is_tie;
          ASSERT_LE(error, slack + (is_tie ? scale : 0)) << step << " " << e;
        }
      }
    }
    EXPECT_LT(num_ties, kCount);  // of 30 times as many
  }
}

// The error of a value is sent again and again, that of a delta is what the
// last delta left.
TEST(CollectiveDeltaTest, TheErrorIsThatOfTheLastStep) {  // I11
  const auto error_after = [](int64_t steps, const std::string& policy) {
    Job job({.nodes = 2, .tensors = {{"w", {40'000}}}, .exchange = policy});
    for (int64_t step = 1; step <= steps; ++step) job.Publish(step);
    std::vector<float> shown(40'000);
    std::memcpy(shown.data(),
                job.rig().weights(1).data() +
                    job.rig().layout().places()[0].weight_offset,
                shown.size() * sizeof(float));
    double sum = 0;
    for (size_t e = 0; e < shown.size(); ++e) {
      sum += std::abs(double{shown[e]} - job.model().master(0)[e]);
    }
    return sum / static_cast<double>(shown.size());
  };
  // A step moves by 1e-3 at most: a block's scale is below 2e-3 / 7.
  const double early = error_after(3, "delta4");
  const double late = error_after(30, "delta4");
  EXPECT_LT(early, 1e-3 / 7);
  EXPECT_LT(late, 1.2 * early);
  EXPECT_LT(error_after(30, "delta2"), 1e-3);
  // Masters of 0.1: a value's scale is 0.1 / 7.
  EXPECT_GT(error_after(30, "weights.codec=int4"), 20 * late);
}

// A block is NaN while a master in it is, and is itself again afterwards; so is
// what was beyond its type's range.
TEST(CollectiveDeltaTest, WhatWasNotFiniteComesBack) {  // I10
  constexpr int64_t kCount = 3 * 2048;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [dtype, bad] : {std::pair(DType::kFloat32, kNan),
                                   {DType::kBFloat16, HUGE_VALF},
                                   {DType::kFloat16, 7e4f}}) {
    Job job({.nodes = 3,
             .tensors = {{"w", {kCount}, dtype}},
             .exchange = "weights.mode=delta weights.codec=int4 "
                         "weights.block=2048"});
    job.Publish(1);
    const float before = job.model().master(0)[5000];
    for (int64_t step = 2; step <= 20; ++step) {
      if (step <= 3) job.model().SetMaster(0, 5000, bad);
      if (step == 4) job.model().SetMaster(0, 5000, before);
      job.Publish(step);
      job.ExpectSame("step " + std::to_string(step));
      const std::vector<float> shown = job.model().published(0);
      for (int64_t i = 0; i < kCount; ++i) {
        const bool is_bad =
            step <= 3 && (i == 5000 || (i >= 4096 && !std::isfinite(bad)));
        ASSERT_EQ(std::isfinite(shown[i]), !is_bad) << step << ' ' << i;
        if (step < 20) continue;
        ASSERT_NEAR(shown[i], job.model().master(0)[i], 1e-3) << i;
      }
    }
  }
}

TEST(CollectiveDeltaTest, TheErrorIsMeasuredBesideTheWeights) {  // I21
  const auto measure = [](const std::string& policy) {
    Job job({.nodes = 2, .tensors = {{"w", {40'000}}}, .exchange = policy});
    job.Publish(1);
    return job.rig().RelativeError(layout::Path::kWeights, Step(1));
  };
  const double delta = measure("weights.mode=delta weights.codec=int4");
  EXPECT_GT(delta, 0);
  EXPECT_LT(delta, measure("weights.codec=int4") / 20);
}

TEST(CollectiveDeltaTest, BytesAreThoseOfTheFormula) {  // I21
  for (const char* policy : kDeltaPolicies) {
    for (const int nodes : {1, 2, 3, 5}) {
      Job job({.nodes = nodes, .workers = 2, .exchange = policy});
      Rig& rig = job.rig();
      for (int64_t step = 198; step <= 200; ++step) {
        rig.ReduceAll(Step(step));
        if (nodes > 1) job.Publish(step);
      }
      uint64_t sent = 0;
      for (int node = 0; node < nodes; ++node) {
        const ByteCounts counts = rig.collective(node)->byte_counts();
        if (nodes > 1) {
          EXPECT_EQ(
              counts.payload_sent,
              3 * rig.plan().PerStep(rig.layout(), NodeRank(node)).total())
              << policy << " on " << nodes;
        }
        EXPECT_GE(counts.wire_sent, counts.payload_sent);
        EXPECT_EQ(nodes == 1 ? 0 : rig.links().sent_bytes(NodeRank(node)),
                  counts.wire_sent + counts.resync_sent);
        sent += counts.payload_sent;
      }
      if (nodes > 1 && rig.plan().quantizes_gradients()) {
        EXPECT_EQ(sent,
                  3 * (nodes - 1) * rig.plan().Model(rig.layout()).total());
      }
    }
  }
}

// 16 bytes a chunk: what the checksums of a default chunk cost.
TEST(CollectiveDeltaTest, HeadersStaySmall) {
  for (const std::string policy : {"delta4", "delta2"}) {
    Job job({.nodes = 2,
             .bucket_bytes = 4 << 20,
             .chunk_bytes = 256 << 10,
             .batch_bytes = Parts().batch_bytes,
             .tensors = {{"w", {4 << 20}}},
             .exchange = policy});
    job.Publish(1);
    const ByteCounts counts = job.rig().collective(0)->byte_counts();
    EXPECT_LT(counts.wire_sent, 1.005 * counts.payload_sent) << policy;
  }
}

// T: a byte of any node's copy, the owner's or another's, in any chunk.
TEST(CollectiveDeltaTest, AByteThatChangedIsFoundAndNothingIsWritten) {  // I2
  const RigOptions options = Meddled(-1, 0, nullptr);
  for (int node = 0; node < 3; ++node) {
    for (int64_t element = 5; element < 9 * 2048; element += 2048) {
      Job job(options);
      job.Publish(1);
      job.ExpectSame("before");
      const layout::Layout& layout = job.rig().layout();
      const size_t at = OffsetOf(layout, element);
      std::byte* const byte = &job.rig().weights(node)[at];
      *byte ^= std::byte{1};
      const std::vector<std::byte> changed(byte, byte + 1);
      job.Publish(2);
      const auto failures = job.Failures();
      ASSERT_FALSE(failures.empty());
      const auto& [who, why] = failures[0];
      EXPECT_EQ(who, node);
      EXPECT_THAT(why, StatusIs(kDataLoss, "of \"w\": version 1 has changed"));
      EXPECT_TRUE(absl::StrContains(
          why.message(), "in the memory of node " + std::to_string(node)));
      EXPECT_EQ(*byte, changed[0]);  // bounded: it is not built upon
      EXPECT_EQ(job.rig().collective(node)->published().faults[0], 1);
      if (OwnerOf(layout, element) == node) {
        // Nobody got anything of it.
        for (int other = 0; other < 3; ++other) {
          if (other == node) continue;
          EXPECT_EQ(job.rig().weights(other)[at], *byte ^ std::byte{1});
        }
      }
      job.rig().CancelAll();
    }
  }
}

// The control: bytes that are nobody's weights may change.
TEST(CollectiveDeltaTest, GapsMayChange) {  // I3
  Job job(Meddled(-1, 0, nullptr));
  job.Publish(1);
  const layout::Layout& layout = job.rig().layout();
  for (size_t i = 200; i < layout.places()[1].weight_offset; ++i) {
    job.rig().weights(1)[i] = std::byte{3};
  }
  job.Publish(2);
  EXPECT_TRUE(job.Failures().empty());
}

// The control: what is built upon a byte that changed stays wrong.
TEST(CollectiveDeltaTest, AnUnseenByteWouldStay) {
  Job job(Meddled(-1, 0, nullptr));
  std::vector<float> sound = job.model().published(1);
  std::vector<float> damaged = sound;
  damaged[77] += 0.25f;
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<float> before = job.model().published(1);
    job.Publish(step);
    for (size_t e = 0; e < sound.size(); ++e) {
      const float delta = job.model().published(1)[e] - before[e];
      sound[e] += delta;
      damaged[e] += delta;
    }
  }
  EXPECT_NEAR(damaged[77] - sound[77], 0.25, 1e-6);
}

TEST(CollectiveDeltaTest, AnotherVersionThanTheOwnersIsFound) {  // I2
  Job job(Meddled(-1, 0, nullptr));
  job.Publish(1);
  // Node 1 changes its copy and believes in it.
  const int64_t element = OwnerOf(job.rig().layout(), 5) == 1 ? 8 * 2048 : 5;
  job.rig().weights(1)[OffsetOf(job.rig().layout(), element)] ^= std::byte{8};
  job.rig().published(1).Initialize(job.rig().weights(1), WeightVersion(1));
  EXPECT_NE(job.rig().published(1).digest(), job.rig().published(0).digest());
  job.Publish(2);
  ASSERT_FALSE(job.Failures().empty());
  EXPECT_EQ(job.Failures()[0].first, 1);
  EXPECT_THAT(job.Failures()[0].second,
              StatusIs(kDataLoss, "version 1 here is not that of node"));
  EXPECT_EQ(job.rig().collective(1)->published().faults[1], 1);
  job.rig().CancelAll();
}

// Any byte of what an owner sends: found, or without effect.
TEST(CollectiveDeltaTest, ADamagedDeltaIsFound) {  // I27
  int num_found = 0;
  for (int at = 0; at < 1200; at += 13) {
    Job job(Meddled(1, kPublishPhase, [at](const auto& spec) {
      for (const auto& part : spec.sends) {
        auto* const bytes = const_cast<std::byte*>(part.bytes.data());
        if (part.bytes.size() > static_cast<size_t>(at)) {
          bytes[at] ^= std::byte{0x20};
          break;
        }
      }
    }));
    job.Publish(1);
    const auto failures = job.Failures();
    if (failures.empty()) {
      job.ExpectSame("byte " + std::to_string(at));
      continue;
    }
    ++num_found;
    for (const auto& [node, why] : failures) {
      EXPECT_NE(node, 1);
      EXPECT_THAT(why, StatusIs(kDataLoss, "nothing was written"));
    }
    job.rig().CancelAll();
  }
  EXPECT_GT(num_found, 60);  // of 93: some are padding
}

TEST(CollectiveDeltaTest, EachBucketIsComparedOnceInAWhile) {  // I21
  Job job({.nodes = 3,
           .bucket_bytes = 1,
           .exchange = "weights.mode=delta weights.codec=int4 "
                       "weights.resync_every_steps=200"});
  const layout::Layout& layout = job.rig().layout();
  const int num_buckets = static_cast<int>(layout.buckets().size());
  ASSERT_GT(num_buckets, 5);
  std::vector<uint64_t> moved;
  for (int64_t step = 200 - num_buckets; step <= 201; ++step) {
    const uint64_t before = job.rig().collective(0)->byte_counts().resync_sent;
    job.Publish(step);
    moved.push_back(job.rig().collective(0)->byte_counts().resync_sent -
                    before);
  }
  job.ExpectSame("compared");
  // From the last bucket to the first; what this node owns of it, twice.
  EXPECT_EQ(moved.front(), 0);
  EXPECT_EQ(moved.back(), 0);
  for (int b = 0; b < num_buckets; ++b) {
    const layout::Shard& own = layout.shard(BucketId(b), NodeRank(0));
    uint64_t bytes = 0;
    for (const layout::Piece& piece : own.pieces) {
      bytes += piece.size() * SizeOf(layout.tensor(piece.tensor).dtype);
    }
    EXPECT_GE(moved[num_buckets - b], 2 * bytes) << b;
    EXPECT_EQ(moved[num_buckets - b] > 0, bytes > 0) << b;
  }
}

// Between the writing and the comparison of step 200 of bucket 0.
TEST(CollectiveDeltaTest, AComparisonPutsRightWhatAMemberHas) {  // I2
  constexpr int64_t kElement = 5;
  Job* job = nullptr;
  RigOptions options = Meddled(2, kResyncPhase, [&](const auto&) {
    job->rig().weights(2)[OffsetOf(job->rig().layout(), kElement)] ^=
        std::byte{1};
  });
  options.exchange += " weights.resync_every_steps=200";
  Job made(options);
  job = &made;
  ASSERT_NE(OwnerOf(made.rig().layout(), kElement), 2);
  made.Publish(200);
  EXPECT_TRUE(made.Failures().empty());
  EXPECT_TRUE(made.rig().weights(2) == made.Expected());
  EXPECT_EQ(made.rig().published(2).faults(), (ChunkFaultCounts{0, 0, 0, 1}));
  made.Publish(201);
  EXPECT_TRUE(made.Failures().empty());
  EXPECT_TRUE(made.rig().weights(2) == made.Expected());
}

TEST(CollectiveDeltaTest, AComparisonFindsAnOwnersBytes) {  // I2
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
    Job made(options);
    job = &made;
    ASSERT_EQ(OwnerOf(made.rig().layout(), kElement), 0);
    made.Publish(200);
    for (const int node : {1, 2}) {
      EXPECT_TRUE(made.rig().weights(node) == made.Expected());
      EXPECT_EQ(made.rig().published(node).faults()[1],
                phase == kResyncPhase ? 1 : 0);
    }
    if (phase == kResyncPhase) {
      // Its own encoding is what may not build upon it.
      EXPECT_TRUE(made.Failures().empty());
      made.rig().StartPublishAll(Step(201));
      made.rig().Settle();
    }
    const auto failures = made.Failures();
    ASSERT_FALSE(failures.empty()) << phase;
    EXPECT_EQ(failures[0].first, 0);
    EXPECT_THAT(
        failures[0].second,
        StatusIs(kDataLoss, phase == kPublishPhase ? "nothing was sent"
                                                   : "nothing was written"));
    made.rig().CancelAll();
  }
}

TEST(CollectiveDeltaTest, TheNextGenerationGoesOn) {  // I19
  Job job({.nodes = 3, .exchange = "delta4"});
  job.Publish(1);
  for (int64_t generation = 2; generation <= 4; ++generation) {
    job.rig().StartReduceAll(Step(generation));
    for (int i = 0; i < 20; ++i) job.rig().world().Step();
    job.rig().CancelAll();
    job.rig().CreateAll(Generation(generation));
    job.Publish(generation);
    job.ExpectSame("generation " + std::to_string(generation));
  }
}

TEST(CollectiveDeltaTest, DeltasNeedChecksums) {
  Rig rig({.nodes = 2, .exchange = "delta4"});
  Parts parts = rig.PartsOf(0);
  parts.published = nullptr;
  EXPECT_THAT(Collective::Create(parts, Generation(1)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "no checksums"));
}

}  // namespace
}  // namespace ballast::collective
