#include "server/collective/batch_cut.h"

#include <algorithm>

namespace ballast::collective {
namespace {

// `bytes` by chunk. Batch i ends with the chunk that brings the sum to
// (i + 1) / num_batches of the whole.
std::vector<Batch> CutShard(const layout::Shard& shard,
                            const std::vector<int64_t>& bytes,
                            int64_t num_batches) {
  int64_t whole = 0;
  for (const int64_t of_chunk : bytes) whole += of_chunk;
  std::vector<Batch> batches;
  Batch batch{.bucket_begin = shard.bucket_begin};
  int64_t sum = 0;
  for (int64_t i = 0; i < num_batches; ++i) {
    while (batch.end_chunk < bytes.size() &&
           (i + 1 == num_batches || sum * num_batches < whole * (i + 1))) {
      sum += bytes[batch.end_chunk++];
    }
    batch.bucket_end =
        batch.end_chunk == bytes.size()
            ? shard.bucket_end
            : shard.chunks[batch.end_chunk].pieces.front().bucket_offset;
    batches.push_back(batch);
    batch.first_chunk = batch.end_chunk;
    batch.bucket_begin = batch.bucket_end;
  }
  return batches;
}

}  // namespace

BatchCut CutBatches(
    const layout::Bucket& bucket,
    absl::FunctionRef<int64_t(const layout::Chunk& chunk)> chunk_bytes,
    int64_t batch_bytes) {
  std::vector<std::vector<int64_t>> bytes;  // by owner, by chunk
  int64_t largest = 0;
  size_t most_chunks = 1;
  for (const layout::Shard& shard : bucket.shards) {
    std::vector<int64_t>& of_shard = bytes.emplace_back();
    int64_t whole = 0;
    for (const layout::Chunk& chunk : shard.chunks) {
      whole += of_shard.emplace_back(chunk_bytes(chunk));
    }
    largest = std::max(largest, whole);
    most_chunks = std::max(most_chunks, shard.chunks.size());
  }
  const int64_t num_batches = std::clamp<int64_t>(
      largest / batch_bytes, 1, static_cast<int64_t>(most_chunks));
  BatchCut cut;
  for (const layout::Shard& shard : bucket.shards) {
    cut.push_back(CutShard(shard, bytes[cut.size()], num_batches));
  }
  return cut;
}

BatchCut CutSumBatches(const layout::Bucket& bucket, int64_t batch_bytes) {
  const auto sum_bytes = [](const layout::Chunk& chunk) {
    return (chunk.state_end - chunk.state_begin) *
           static_cast<int64_t>(sizeof(float));
  };
  return CutBatches(bucket, sum_bytes, batch_bytes);
}

}  // namespace ballast::collective
