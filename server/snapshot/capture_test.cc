#include "server/snapshot/capture.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/snapshot/encoded_weights.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

struct OwnedChunk {
  int64_t index;
  const layout::Chunk* chunk;
};

std::vector<OwnedChunk> ChunksOf(SnapshotRig& rig) {
  std::vector<OwnedChunk> chunks;
  for (const layout::Bucket& bucket : rig.layout().buckets()) {
    for (const auto& chunk : bucket.shards[rig.node().value()].chunks) {
      chunks.push_back({static_cast<int64_t>(chunks.size()), &chunk});
    }
  }
  return chunks;
}

// The image of a state that nobody changes.
std::vector<std::byte> ImageOf(int64_t version, bool has_published) {
  base::SimExecutor executor(1);
  SnapshotRig rig(2, 1, 1, &executor, 16 << 10, has_published);
  rig.Fill(version);
  const ShardPlan plan(rig.layout(), rig.node(), rig.content());
  Capture capture(&plan, rig.state(), rig.places());
  std::vector<std::byte> image(plan.image_bytes());
  capture.Begin(image, 0);
  capture.CopyNext(INT64_MAX);
  EXPECT_TRUE(capture.is_complete());
  EXPECT_EQ(capture.bytes_by_updates(), 0u);
  return image;
}

class CaptureTest : public testing::TestWithParam<bool> {
 protected:
  base::SimExecutor executor_{1};
  SnapshotRig rig_{2, 1, 1, &executor_, 16 << 10, GetParam()};
  const ShardPlan plan_{rig_.layout(), rig_.node(), rig_.content()};
  Capture capture_{&plan_, rig_.state(), rig_.places()};
  std::vector<std::byte> image_ = std::vector<std::byte>(plan_.image_bytes());
};

INSTANTIATE_TEST_SUITE_P(, CaptureTest, testing::Bool());

TEST_P(CaptureTest, KeepsTheVersionThatItBeganWith) {  // I18
  const std::vector<OwnedChunk> chunks = ChunksOf(rig_);
  ASSERT_GT(chunks.size(), 4u);
  for (size_t copied = 0; copied <= chunks.size(); ++copied) {
    rig_.Fill(3);
    capture_.Begin(image_, 0);
    capture_.CopyNext(static_cast<int64_t>(copied));
    for (const OwnedChunk& chunk : chunks) {
      capture_.BeforeUpdate(chunk.index);
      rig_.FillChunk(*chunk.chunk, 4);
    }
    EXPECT_TRUE(capture_.is_complete());
    capture_.CopyNext(INT64_MAX);  // changes nothing
    EXPECT_EQ(image_, ImageOf(3, GetParam())) << copied;
  }
  EXPECT_GT(capture_.bytes_by_updates(), 0u);
}

// The control: an update that does not say so is seen in the image.
TEST_P(CaptureTest, SeesAnUpdateThatIsNotAnnounced) {
  rig_.Fill(3);
  capture_.Begin(image_, 0);
  rig_.FillChunk(*ChunksOf(rig_).back().chunk, 4);
  capture_.CopyNext(INT64_MAX);
  EXPECT_NE(image_, ImageOf(3, GetParam()));
}

TEST_P(CaptureTest, CostsNothingWhenItIsOver) {
  rig_.Fill(3);
  capture_.BeforeUpdate(0);  // never begun
  capture_.Begin(image_, 0);
  capture_.Abandon();
  const std::vector<std::byte> before = image_;
  for (const OwnedChunk& chunk : ChunksOf(rig_)) {
    capture_.BeforeUpdate(chunk.index);
  }
  EXPECT_EQ(image_, before);
  EXPECT_EQ(capture_.bytes_by_updates(), 0u);
}

TEST_P(CaptureTest, KeepsTheVersionUnderThreads) {  // I18, I22
  const std::vector<OwnedChunk> chunks = ChunksOf(rig_);
  const std::vector<std::byte> expected = ImageOf(5, GetParam());
  for (int round = 0; round < 50; ++round) {
    rig_.Fill(5);
    capture_.Begin(image_, 0);
    std::thread reader([this] { capture_.CopyNext(INT64_MAX); });
    std::vector<std::thread> updates;
    for (int t = 0; t < 2; ++t) {
      updates.emplace_back([&, t] {
        for (size_t c = t; c < chunks.size(); c += 2) {
          const OwnedChunk& chunk = chunks[chunks.size() - 1 - c];
          capture_.BeforeUpdate(chunk.index);
          rig_.FillChunk(*chunk.chunk, 6);
        }
      });
    }
    reader.join();
    for (std::thread& update : updates) update.join();
    EXPECT_TRUE(capture_.is_complete());
    EXPECT_EQ(image_, expected);
  }
}

// Weights that are kept as the bytes of the segment, inverted.
class Inverted final : public EncodedWeights {
 public:
  Inverted(const ShardPlan* plan, std::span<const std::byte> segment)
      : plan_(*plan), segment_(segment) {}

  bool is_encoded() const override { return is_inverted; }
  void Decode(int64_t chunk, size_t piece, std::span<float> scratch,
              std::span<std::byte> into) const override {
    const PieceCopy& copy = plan_.copies(chunk)[piece];
    EXPECT_EQ(scratch.size(), static_cast<size_t>(copy.num_elements));
    EXPECT_EQ(into.size(), copy.weight_bytes);
    std::ranges::fill(scratch, -1.0f);
    for (size_t i = 0; i < into.size(); ++i) {
      into[i] = ~segment_[copy.weight_offset + i];
    }
  }

  bool is_inverted = true;

 private:
  const ShardPlan& plan_;
  const std::span<const std::byte> segment_;
};

class CaptureEncodedTest : public testing::Test {
 protected:
  // Of version 3, that began so, while every update encodes.
  std::vector<std::byte> Keep(bool is_encoded, bool announces) {
    rig_.Fill(3);
    encoded_.is_inverted = is_encoded;
    capture_.Begin(image_, 0);
    encoded_.is_inverted = true;
    for (const OwnedChunk& chunk : ChunksOf(rig_)) {
      if (announces) capture_.BeforeUpdate(chunk.index);
      rig_.FillChunk(*chunk.chunk, 4);
      capture_.CopyNext(1);
    }
    capture_.CopyNext(INT64_MAX);
    return image_;
  }
  std::vector<std::byte> Expected(bool is_encoded) {
    std::vector<std::byte> image = ImageOf(3, /*has_published=*/true);
    for (int64_t c = 0; is_encoded && c < plan_.num_chunks(); ++c) {
      for (const PieceCopy& copy : plan_.copies(c)) {
        std::byte* const weights =
            image.data() +
            copy.image_offset[static_cast<size_t>(Kind::kPublished)];
        for (uint64_t i = 0; i < copy.weight_bytes; ++i) {
          weights[i] = ~weights[i];
        }
      }
    }
    return image;
  }

  base::SimExecutor executor_{1};
  SnapshotRig rig_{2, 1, 1, &executor_, 16 << 10, true, 0, true};
  const ShardPlan plan_{rig_.layout(), rig_.node(), rig_.content()};
  Inverted encoded_{&plan_, rig_.weights()};
  Capture capture_{&plan_, rig_.state(), rig_.places(), nullptr, &encoded_};
  std::vector<std::byte> image_ = std::vector<std::byte>(plan_.image_bytes());
};

TEST_F(CaptureEncodedTest, KeepsWhatEverybodyDecodes) {  // I18, I25
  EXPECT_EQ(Keep(/*is_encoded=*/true, /*announces=*/true), Expected(true));
}

// The first update after the start encodes them: the version is not.
TEST_F(CaptureEncodedTest, KeepsStoredValuesThatAreNotEncodedYet) {  // I18
  EXPECT_EQ(Keep(/*is_encoded=*/false, /*announces=*/true), Expected(false));
  EXPECT_NE(Expected(false), Expected(true));
}

TEST_F(CaptureEncodedTest, SeesAnUpdateThatIsNotAnnounced) {  // the control
  EXPECT_NE(Keep(/*is_encoded=*/true, /*announces=*/false), Expected(true));
}

}  // namespace
}  // namespace ballast::snapshot
