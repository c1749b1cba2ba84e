// How a part is cut into chunks, and a set of them. Pure.
//
//   part of 1000 bytes, chunks of 400:  [0, 400) [400, 800) [800, 1000)
//
// Threading: thread-compatible.
#ifndef SERVER_TRANSPORT_UCX_CHUNK_SET_H_
#define SERVER_TRANSPORT_UCX_CHUNK_SET_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace ballast::transport {

// An empty part has one empty chunk: it still synchronises.
inline uint64_t NumChunks(uint64_t part_bytes, uint32_t chunk_bytes) {
  return std::max<uint64_t>(
      1, part_bytes / chunk_bytes + (part_bytes % chunk_bytes != 0));
}

struct ChunkRange {
  uint64_t offset;
  uint64_t size;
};
// `chunk` < NumChunks.
inline ChunkRange RangeOfChunk(uint64_t part_bytes, uint32_t chunk_bytes,
                               uint32_t chunk) {
  const uint64_t offset = uint64_t{chunk} * chunk_bytes;
  return {offset, std::min<uint64_t>(chunk_bytes, part_bytes - offset)};
}

// Never allocates after the constructor.
class ChunkSet {
 public:
  explicit ChunkSet(uint32_t num_chunks)
      : num_chunks_(num_chunks), words_((num_chunks + 63) / 64) {}

  uint32_t capacity() const { return num_chunks_; }
  uint32_t count() const { return count_; }
  bool is_full() const { return count_ == num_chunks_; }
  bool empty() const { return count_ == 0; }
  bool Contains(uint32_t chunk) const {
    return (words_[chunk / 64] >> (chunk % 64)) & 1;
  }

  void Clear() {
    std::ranges::fill(words_, 0);
    count_ = 0;
  }
  // False if it was there.
  bool Insert(uint32_t chunk) {
    if (Contains(chunk)) return false;
    words_[chunk / 64] |= uint64_t{1} << (chunk % 64);
    ++count_;
    return true;
  }
  // Takes the lowest one out; the set must not be empty.
  uint32_t TakeFirst() {
    for (uint32_t i = 0;; ++i) {
      if (words_[i] == 0) continue;
      const int bit = std::countr_zero(words_[i]);
      words_[i] &= words_[i] - 1;
      --count_;
      return i * 64 + bit;
    }
  }

 private:
  uint32_t num_chunks_;
  uint32_t count_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_CHUNK_SET_H_
