#include "server/collective/batch_cut.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "server/layout/layout.h"

namespace ballast::collective {
namespace {

int64_t Bytes(const layout::Chunk& chunk) {
  return 4 * (chunk.state_end - chunk.state_begin);
}

layout::Layout MakeLayout(int nodes, uint64_t bucket_bytes,
                          uint64_t chunk_bytes) {
  return *layout::Layout::Create(
      {{"a", {50'257}}, {"b", {3}}, {"c", {13, 17, 19}}, {"d", {2048 * 40}}},
      {nodes, 2}, 1,
      {.bucket_bytes = bucket_bytes, .chunk_bytes = chunk_bytes});
}

// Whatever the cut: every chunk is in one batch, in order, and the batches
// tile the shard's scratch, so that all nodes mean the same bytes.
TEST(BatchCutTest, BatchesTileEveryShard) {  // I4, I9
  for (const int nodes : {1, 2, 3, 5, 64}) {
    for (const uint64_t chunk_bytes : {1, 20'000, 1 << 20}) {
      for (const int64_t batch_bytes : {1, 8192, 30'000, 1 << 30}) {
        const layout::Layout layout = MakeLayout(nodes, 1 << 18, chunk_bytes);
        for (const layout::Bucket& bucket : layout.buckets()) {
          const BatchCut cut = CutBatches(bucket, Bytes, batch_bytes);
          ASSERT_EQ(cut.size(), bucket.shards.size());
          ASSERT_GE(cut[0].size(), 1u);
          for (const layout::Shard& shard : bucket.shards) {
            const std::vector<Batch>& batches = cut[shard.owner.value()];
            ASSERT_EQ(batches.size(), cut[0].size());
            size_t chunk = 0;
            int64_t element = shard.bucket_begin;
            for (const Batch& batch : batches) {
              EXPECT_EQ(batch.first_chunk, chunk);
              EXPECT_EQ(batch.bucket_begin, element);
              EXPECT_EQ(batch.elements() == 0, batch.num_chunks() == 0);
              if (batch.num_chunks() > 0) {
                EXPECT_EQ(shard.chunks[chunk].pieces.front().bucket_offset,
                          element);
              }
              chunk = batch.end_chunk;
              element = batch.bucket_end;
            }
            EXPECT_EQ(chunk, shard.chunks.size());
            EXPECT_EQ(element, shard.bucket_end);
          }
        }
      }
    }
  }
}

TEST(BatchCutTest, EveryNodeCutsAlike) {  // each has a layout of its own
  for (const int64_t batch_bytes : {1, 50'000}) {
    const layout::Layout mine = MakeLayout(3, 1 << 18, 16'384);
    const layout::Layout theirs = MakeLayout(3, 1 << 18, 16'384);
    for (const layout::Bucket& bucket : mine.buckets()) {
      EXPECT_EQ(CutBatches(bucket, Bytes, batch_bytes),
                CutBatches(theirs.bucket(bucket.id), Bytes, batch_bytes));
    }
  }
}

TEST(BatchCutTest, ABatchHasItsBytesUnlessTheBucketIsSmall) {
  // 40 chunks of a cell on two nodes: 20 x 8 KiB in each shard.
  const layout::Layout layout = *layout::Layout::Create(
      {{"w", {40 * 2048}}}, {2, 1}, 1, {.chunk_bytes = 8192});
  const auto sizes = [&layout](int64_t batch_bytes) {
    std::vector<size_t> chunks;
    const BatchCut cut = CutBatches(layout.buckets()[0], Bytes, batch_bytes);
    for (const Batch& batch : cut[1]) {
      chunks.push_back(batch.num_chunks());
    }
    return chunks;
  };
  EXPECT_EQ(sizes(1), std::vector<size_t>(20, 1));
  EXPECT_EQ(sizes(8192), std::vector<size_t>(20, 1));
  EXPECT_EQ(sizes(3 * 8192), (std::vector<size_t>{4, 3, 3, 4, 3, 3}));
  EXPECT_EQ(sizes(11 * 8192), std::vector<size_t>{20});
  EXPECT_EQ(sizes(int64_t{1} << 40), std::vector<size_t>{20});
}

}  // namespace
}  // namespace ballast::collective
