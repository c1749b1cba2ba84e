// Where the encoded runs of one owner's slice of a bucket lie: one run per
// piece of a chunk, one after the other, each at a multiple of 16 bytes. The
// same on every node.
//
//   chunk 0                    chunk 1
//   | a[0, 4096) | b[0, 300) | | c[0, 2048) | …     codecs by tensor
//
// Threading: plain values; immutable once planned.
#ifndef SERVER_COLLECTIVE_CODED_SLICE_H_
#define SERVER_COLLECTIVE_CODED_SLICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/collective/codec.h"
#include "server/layout/types.h"

namespace ballast::collective {

struct CodedRun {
  const layout::Piece* piece = nullptr;  // of the layout
  const Codec* codec = nullptr;
  int64_t offset = 0;  // bytes, in the slice
};

struct CodedSlice {
  std::vector<std::vector<CodedRun>> chunks;
  int64_t bytes = 0;
  uint64_t payload = 0;  // without alignment
};

// `codecs` by tensor. The shard and the codecs outlive the slice.
inline CodedSlice PlanSlice(const layout::Shard& shard,
                            std::span<const std::unique_ptr<Codec>> codecs) {
  CodedSlice slice;
  for (const layout::Chunk& chunk : shard.chunks) {
    std::vector<CodedRun>& runs = slice.chunks.emplace_back();
    for (const layout::Piece& piece : chunk.pieces) {
      const Codec* const codec = codecs[piece.tensor.value()].get();
      runs.push_back({&piece, codec, slice.bytes});
      slice.bytes += codec->EncodedBytes(piece.size());
      slice.payload += codec->PayloadBytes(piece.size());
    }
  }
  return slice;
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_SLICE_H_
