// The memory between nodes of one path: equal windows, of which each bucket
// that is on its way has one; and how much a thread needs beside it.
//
// Threading: plain values; allocated once.
#ifndef SERVER_COLLECTIVE_WINDOWS_H_
#define SERVER_COLLECTIVE_WINDOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "server/base/status_macros.h"
#include "server/collective/context.h"
#include "server/device/device.h"
#include "server/layout/layout.h"

namespace ballast::collective {

// Equal windows in one buffer.
class Windows {
 public:
  absl::Status Allocate(device::Device* device, int num_windows, int64_t bytes,
                        std::string_view what) {
    num_windows_ = num_windows;
    window_bytes_ = PadBytes(std::max<int64_t>(bytes, 1));
    ASSIGN_OR_RETURN(
        buffer_, device->AllocatePrivate(num_windows * window_bytes_, what));
    return absl::OkStatus();
  }
  std::span<std::byte> Of(int index) const {
    if (buffer_ == nullptr) return {};
    return buffer_->bytes().subspan(index % num_windows_ * window_bytes_,
                                    window_bytes_);
  }

 private:
  int num_windows_ = 0;
  int64_t window_bytes_ = 0;
  std::unique_ptr<device::PrivateBuffer> buffer_;
};

// The longest piece of a chunk, and the most that a chunk's pieces take in
// their own types, each padded.
struct LongestChunk {
  int64_t run = 0;
  int64_t chunk_bytes = 0;
};

inline LongestChunk FindLongestChunk(const layout::Layout& layout) {
  LongestChunk longest;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (const layout::Chunk& chunk : shard.chunks) {
        int64_t bytes = 0;
        for (const layout::Piece& piece : chunk.pieces) {
          longest.run = std::max(longest.run, piece.size());
          bytes += PadBytes(piece.size() *
                            SizeOf(layout.tensor(piece.tensor).dtype));
        }
        longest.chunk_bytes = std::max(longest.chunk_bytes, bytes);
      }
    }
  }
  return longest;
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_WINDOWS_H_
