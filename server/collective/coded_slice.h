// Where the encoded runs of one owner's slice of a bucket lie: one run per
// piece of a chunk, one after the other, each at a multiple of 16 bytes. The
// same on every node.
//
//   chunk 0                             chunk 1
//   | header | a[0, 4096) | b[0, 300) | | header | c[0, 2048) | …
//   chunks[0].offset                    chunks[1].offset
//
// Codecs by tensor; headers of 0 or 16 bytes (chunk_coder.h).
//
// Threading: plain values; immutable once planned.
#ifndef SERVER_COLLECTIVE_CODED_SLICE_H_
#define SERVER_COLLECTIVE_CODED_SLICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/codec.h"
#include "server/collective/batch_cut.h"
#include "server/collective/codec.h"
#include "server/layout/types.h"

namespace ballast::collective {

struct CodedRun {
  const layout::Piece* piece = nullptr;  // of the layout
  const Codec* codec = nullptr;
  int64_t offset = 0;  // bytes, in the slice
};

struct CodedChunk {
  std::vector<CodedRun> runs;
  int64_t offset = 0;  // bytes, in the slice
  int64_t bytes = 0;
  uint64_t payload = 0;  // without alignment and header
};

struct CodedSlice {
  std::vector<CodedChunk> chunks;
  int64_t bytes = 0;

  std::span<const CodedChunk> ChunksOf(const Batch& batch) const {
    return std::span(chunks).subspan(batch.first_chunk, batch.num_chunks());
  }
  // Of what lies at `slice`.
  template <typename Byte>
  std::span<Byte> BytesOf(const Batch& batch, Byte* slice) const {
    if (batch.num_chunks() == 0) return {};
    const CodedChunk& last = chunks[batch.end_chunk - 1];
    const int64_t begin = chunks[batch.first_chunk].offset;
    return {slice + begin, slice + last.offset + last.bytes};
  }
};

using Codecs = std::vector<std::unique_ptr<Codec>>;  // by tensor

// The shard and the codecs outlive the slice.
inline CodedSlice PlanSlice(const layout::Shard& shard, const Codecs& codecs,
                            int64_t header_bytes = 0) {
  CodedSlice slice;
  for (const layout::Chunk& chunk : shard.chunks) {
    CodedChunk& coded = slice.chunks.emplace_back();
    coded.offset = slice.bytes;
    coded.bytes = header_bytes;
    for (const layout::Piece& piece : chunk.pieces) {
      const Codec* const codec = codecs[piece.tensor.value()].get();
      coded.runs.push_back({&piece, codec, coded.offset + coded.bytes});
      coded.bytes += codec->EncodedBytes(piece.size());
      coded.payload += codec->PayloadBytes(piece.size());
    }
    slice.bytes += coded.bytes;
  }
  return slice;
}

// No codec makes a run longer than its elements as they are by as much: a
// scale and twice the alignment.
inline constexpr int64_t kRunSlack = 3 * kernels::kRunAlignment;

// What the slice takes at most, whatever codecs its tensors change to; of
// codecs that leave all elements as they are.
inline int64_t WidestBytes(const CodedSlice& slice) {
  int64_t bytes = slice.bytes;
  for (const CodedChunk& chunk : slice.chunks) {
    bytes += static_cast<int64_t>(chunk.runs.size()) * kRunSlack;
  }
  return bytes;
}

inline uint64_t PayloadOf(std::span<const CodedChunk> chunks) {
  uint64_t payload = 0;
  for (const CodedChunk& chunk : chunks) payload += chunk.payload;
  return payload;
}

// By what the chunks take when encoded.
inline BatchCut CutCodedBatches(const layout::Bucket& bucket,
                                const Codecs& codecs, int64_t batch_bytes,
                                int64_t header_bytes = 0) {
  const auto encoded_bytes = [&](const layout::Chunk& chunk) {
    int64_t bytes = header_bytes;
    for (const layout::Piece& piece : chunk.pieces) {
      bytes += codecs[piece.tensor.value()]->EncodedBytes(piece.size());
    }
    return bytes;
  };
  return CutBatches(bucket, encoded_bytes, batch_bytes);
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_SLICE_H_
