// Which chunks of a bucket travel between nodes together: a batch is a run of
// chunks of each shard that one exchange carries, so that one batch is on the
// wire while the next is encoded and the one before is decoded.
//
//   shard of node 0   | c0 c1 | c2 c3 | c4 |      3 batches in every shard;
//   shard of node 1   | c0 c1 | c2 c3 | c4 |      exchange i carries batch i
//                      batch 0 batch 1 batch 2    of all shards
//
// A function of the layout and of what a chunk takes on the wire, which all
// nodes know: they agree without a word. The number is such that a batch of
// the largest shard takes at least `batch_bytes`, if there is that much: small
// buckets are one batch, and headers stay a small part.
//
// Threading: pure function.
#ifndef SERVER_COLLECTIVE_BATCH_CUT_H_
#define SERVER_COLLECTIVE_BATCH_CUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/layout/types.h"

namespace ballast::collective {

struct Batch {  // of one shard; may be empty
  size_t first_chunk = 0;
  size_t end_chunk = 0;
  // [begin, end) in the bucket's fp32 scratch, padding included: the batches
  // of a shard tile its part of it.
  int64_t bucket_begin = 0;
  int64_t bucket_end = 0;

  size_t num_chunks() const { return end_chunk - first_chunk; }
  int64_t elements() const { return bucket_end - bucket_begin; }
  bool operator==(const Batch&) const = default;
};

// By owner, by batch: of every owner equally many, at least one.
using BatchCut = std::vector<std::vector<Batch>>;

// `chunk_bytes`: what a chunk takes on the wire, the same on every node;
// `batch_bytes` > 0.
BatchCut CutBatches(
    const layout::Bucket& bucket,
    absl::FunctionRef<int64_t(const layout::Chunk& chunk)> chunk_bytes,
    int64_t batch_bytes);

// The same where fp32 sums travel: by the elements, whatever the number of a
// node's sums, which peers need not have in common.
BatchCut CutSumBatches(const layout::Bucket& bucket, int64_t batch_bytes);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BATCH_CUT_H_
