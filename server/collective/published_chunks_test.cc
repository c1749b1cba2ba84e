#include "server/collective/published_chunks.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/device/host/host_device.h"

namespace ballast::collective {
namespace {

layout::Layout MakeLayout(uint64_t bucket_bytes) {
  using kernels::DType;
  return *layout::Layout::Create(
      {{"a", {3000}, DType::kBFloat16},
       {"frozen", {77}, DType::kFloat32, false},
       {"b", {5}, DType::kFloat16},
       {"c", {10'000}, DType::kFloat32}},
      {2, 1}, 1, {.bucket_bytes = bucket_bytes, .chunk_bytes = 16'384});
}

class PublishedChunksTest : public ::testing::Test {
 protected:
  PublishedChunksTest() {
    for (size_t i = 0; i < weights_.size(); ++i) {
      weights_[i] = static_cast<std::byte>(i * 31);
    }
    published_.Initialize(weights_, WeightVersion(4));
  }

  const layout::Layout layout_ = MakeLayout(24'000);
  std::vector<std::byte> weights_ =
      std::vector<std::byte>(layout_.weights_bytes());
  PublishedChunks published_{&layout_};
};

// I2: each byte of a trainable tensor counts, no other does.
TEST_F(PublishedChunksTest, EveryTrainableByteIsInOneChecksum) {
  const std::vector<std::byte> before = weights_;
  int64_t counted = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] ^= std::byte{1};
    int changed = 0;
    for (const layout::Bucket& bucket : layout_.buckets()) {
      for (const layout::Shard& shard : bucket.shards) {
        for (size_t c = 0; c < shard.chunks.size(); ++c) {
          const ChunkId id{bucket.id, shard.owner, c};
          changed += published_.Checksum(id, weights_) !=
                     published_.entry(id).checksum;
        }
      }
    }
    ASSERT_LE(changed, 1) << i;
    counted += changed;
    weights_[i] = before[i];
    i += i > 100 ? 6 : 0;
  }
  int64_t expected = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    for (size_t t = 0; t < layout_.tensors().size(); ++t) {
      const layout::TensorPlace& place = layout_.places()[t];
      const uint64_t size =
          place.num_elements * SizeOf(layout_.tensors()[t].dtype);
      expected += layout_.tensors()[t].trainable && i >= place.weight_offset &&
                  i < place.weight_offset + size;
    }
    i += i > 100 ? 6 : 0;
  }
  EXPECT_EQ(counted, expected);
}

TEST_F(PublishedChunksTest, TheDigestIsThatOfTheEntries) {
  PublishedChunks other(&layout_);
  EXPECT_EQ(other.digest(), 0);
  other.Initialize(weights_, WeightVersion(4));
  EXPECT_EQ(other.digest(), published_.digest());
  const ChunkId id{BucketId(0), NodeRank(1), 0};
  PublishedChunks::Entry& entry = other.entry(id);
  const PublishedChunks::Entry before = entry;
  entry.version = WeightVersion(5);
  EXPECT_EQ(other.digest(), published_.digest());  // not sealed
  other.Seal(BucketId(0));
  EXPECT_NE(other.digest(), published_.digest());
  entry = before;
  ++entry.checksum;
  other.Seal(BucketId(0));
  EXPECT_NE(other.digest(), published_.digest());
  entry = before;
  other.Seal(BucketId(0));
  EXPECT_EQ(other.digest(), published_.digest());
  // Which chunk has which checksum counts.
  std::swap(other.entry({BucketId(0), NodeRank(0), 0}), entry);
  other.Seal(BucketId(0));
  EXPECT_NE(other.digest(), published_.digest());
}

TEST_F(PublishedChunksTest, DescribesChunksAndCountsFaults) {
  EXPECT_EQ(published_.Describe({BucketId(0), NodeRank(0), 0}),
            "elements [0, 3000) of \"a\"");
  published_.Count(ChunkFault::kResult);
  published_.Count(ChunkFault::kResult);
  EXPECT_EQ(published_.faults(), (ChunkFaultCounts{0, 0, 2, 0}));
}

// I20: the next process knows of each chunk what the last one wrote, and of one
// whose writing was cut what it was before.
TEST_F(PublishedChunksTest, OutlivesTheProcess) {
  base::SimExecutor executor(1);
  device::HostDevice device({}, &executor);
  const uint64_t size = PublishedChunks::SizeBytes(layout_, NodeRank(1));
  std::vector<std::byte> left(size);
  const auto next_life = [&] {
    auto memory = *device.AllocateShared(size, "published chunks");
    std::ranges::copy(left, memory->bytes().begin());
    return std::make_unique<PublishedChunks>(&layout_, NodeRank(1),
                                             std::move(memory));
  };
  auto memory = *device.AllocateShared(size, "published chunks");
  const std::span<std::byte> bytes = memory->bytes();
  PublishedChunks kept(&layout_, NodeRank(1), std::move(memory));
  kept.Initialize(weights_, WeightVersion(4));
  EXPECT_EQ(kept.digest(), published_.digest());
  const ChunkId id{BucketId(0), NodeRank(1), 0};
  const size_t num_runs =
      layout_.shard(id.bucket, id.owner).chunks[0].pieces.size();
  kept.ErrorsOf(id, num_runs)[0].sampled = 17;
  std::ranges::copy(bytes, left.begin());
  const auto first = next_life();
  EXPECT_EQ(first->digest(), published_.digest());
  EXPECT_EQ(first->ErrorsOf(id, num_runs)[0].sampled, 17u);
  kept.Set(id, {0x1234, WeightVersion(5)});
  // All but the last store, that of the version.
  std::vector<std::byte> after(bytes.begin(), bytes.end());
  int news = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (left[i] == after[i]) continue;
    const auto entry = next_life()->entry(id);
    news += entry.version == WeightVersion(5);
    EXPECT_EQ(entry.checksum, published_.entry(id).checksum);
    left[i] = after[i];
  }
  EXPECT_EQ(news, 0);
  EXPECT_EQ(next_life()->entry(id).checksum, 0x1234u);
  EXPECT_EQ(next_life()->entry(id).version, WeightVersion(5));
}

}  // namespace
}  // namespace ballast::collective
