// What a coded publisher does with one chunk: from the owner's masters to bytes
// for the others, and from those bytes to the published weights of any node,
// the owner too. Two ways (layout::WeightMode): the masters themselves, or how
// far they are from what is published, with checksums of before and after.
//
// Threading: immutable; thread-safe on disjoint chunks. No allocation but for
// an error.
#ifndef SERVER_COLLECTIVE_CHUNK_CODER_H_
#define SERVER_COLLECTIVE_CHUNK_CODER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/coded_slice.h"
#include "server/collective/error_sums.h"
#include "server/collective/published_chunks.h"

namespace ballast::collective {

class ChunkCoder {
 public:
  virtual ~ChunkCoder() = default;

  // Of a chunk in a slice, before its runs.
  virtual int64_t header_bytes() const = 0;

  // The owner's part: `chunk` into the slice and into its own weights; the
  // errors of each run. DataLoss if its copy is not what it wrote: nothing is
  // sent or written. A difference that is in its weights already (the links
  // were lost meanwhile) is gone: the others are told, and `errors` stay.
  virtual absl::Status Encode(int thread, Step step, const ChunkId& id,
                              const CodedChunk& chunk, std::byte* slice,
                              std::span<ErrorSums> errors) const = 0;
  // Everyone else's: from the slice into the weights. DataLoss if the chunk
  // would not become what its owner has, NotFound if the difference is gone:
  // nothing is written.
  virtual absl::Status Decode(int thread, Step step, const ChunkId& id,
                              const CodedChunk& chunk,
                              const std::byte* slice) const = 0;
  // The checksum that the owner says the chunk will have.
  virtual uint64_t Told(const CodedChunk& chunk,
                        const std::byte* slice) const = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_CODER_H_
