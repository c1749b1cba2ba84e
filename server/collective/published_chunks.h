// What this node knows of the weights it shows to its workers in delta mode: of
// each chunk the checksum of its bits and the version that wrote them
// (kernels/FORMAT.md 9). A delta is applied only to bits that still have it.
//
// Where a job outlives its daemon, so does this: a buffer of the device,
// version 1, native little-endian,
//
//   0     slots[num_chunks][2]   checksum, version: that of an even version and
//                                of an odd one; the newer counts
//   ...   errors                 ErrorSums of each piece of each own chunk
//
// A chunk's bits are written first, its checksum next, its version last: what
// is found after a death in between has another checksum than the older slot
// says, and is healed.
//
// Threading: an entry, and its chunk's bits, are read and written by the pool
// task that has the chunk, and on the control thread while none has;
// Initialize, Seal and digest on the control thread, of buckets of which no
// task is in the pool. Counts may be read any time. Ownership: outlives
// generations, as the published weights do.
#ifndef SERVER_COLLECTIVE_PUBLISHED_CHUNKS_H_
#define SERVER_COLLECTIVE_PUBLISHED_CHUNKS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/base/ids.h"
#include "server/collective/error_sums.h"
#include "server/device/device.h"
#include "server/layout/layout.h"

namespace ballast::collective {

// What is wrong with a chunk that is not as it should be.
enum class ChunkFault {
  kCopy,       // this node's copy is not what it wrote
  kReference,  // the owner's copy is another one than ours
  kResult,     // what the owner sent does not give the owner's result
  kResync,     // a comparison found other bits, and wrote the owner's
  kVote,       // another one than the owner's when the votes' digests differed
  kVerify,     // as kCopy, found before this node voted (verify/verifier.h)
};
inline constexpr int kNumChunkFaults = 6;
using ChunkFaultCounts = std::array<uint64_t, kNumChunkFaults>;

// How a chunk got the right bits again.
enum class HealKind {
  kOwner,   // the owner's copy had changed: another node's
  kMember,  // it could not be brought to the step's version: its owner's
  kVote,    // the nodes' votes showed different weights: its owner's
  kResync,  // by a comparison (ChunkFault::kResync)
  kRelink,  // nothing was wrong: links were lost between its owner and here
};
inline constexpr int kNumHealKinds = 5;
using HealCounts = std::array<uint64_t, kNumHealKinds>;

struct ChunkId {
  BucketId bucket;
  NodeRank owner;
  size_t index = 0;  // in the owner's shard
};

uint64_t ExtendChecksum(uint64_t checksum, std::span<const std::byte> bytes);

class PublishedChunks {
 public:
  struct Entry {
    uint64_t checksum = 0;
    WeightVersion version;
  };

  // The layout outlives this. `memory`: of SizeBytes, zeroed or as an earlier
  // life left it; null: this ends with the process.
  explicit PublishedChunks(const layout::Layout* layout, NodeRank node = {},
                           std::unique_ptr<device::SharedBuffer> memory = {});
  static uint64_t SizeBytes(const layout::Layout& layout, NodeRank node);
  static constexpr uint32_t kVersion = 1;  // of the buffer's format

  // All chunks of a segment that holds `version`.
  void Initialize(std::span<const std::byte> weights, WeightVersion version);

  size_t num_chunks() const { return entries_.size(); }
  // The chunk's number in layout order.
  size_t IndexOf(const ChunkId& id) const {
    const size_t owners = layout_->topology().num_owners();
    return first_[id.bucket.value() * owners + id.owner.value()] + id.index;
  }

  Entry& entry(const ChunkId& id) { return entries_[IndexOf(id)]; }
  // The chunk's bits are written: from now on it is this.
  void Set(const ChunkId& id, const Entry& entry);
  const layout::Chunk& chunk(const ChunkId& id) const {
    return layout_->shard(id.bucket, id.owner).chunks[id.index];
  }
  // "elements [0, 4096) of "wte"", to the last tensor of the chunk.
  std::string Describe(const ChunkId& id) const;
  // Of the chunk's bits in a segment.
  uint64_t Checksum(const ChunkId& id,
                    std::span<const std::byte> weights) const;

  // A copy of the chunk's bits, piece after piece without gaps.
  size_t BytesOf(const ChunkId& id) const;
  uint64_t ChecksumOfCopy(const ChunkId& id,
                          std::span<const std::byte> copy) const;
  void CopyOut(const ChunkId& id, std::span<const std::byte> weights,
               std::span<std::byte> copy) const;
  void CopyIn(const ChunkId& id, std::span<const std::byte> copy,
              std::span<std::byte> weights) const;

  // What the last encoding of the chunk, one of this node's own, measured of
  // each of its runs: kept, as the chunk is not encoded twice. Zeros if it had
  // another number of runs. Control thread; valid until it has another one.
  std::span<ErrorSums> ErrorsOf(const ChunkId& id, size_t num_runs);

  // Takes the bucket's entries into the digest.
  void Seal(BucketId bucket);
  // Makes the digest anew, of all entries.
  void SealAll();
  // Of the whole version: equal on all nodes that publish the same bits.
  uint64_t digest() const { return digest_; }

  void Count(ChunkFault fault) { ++faults_[static_cast<size_t>(fault)]; }
  ChunkFaultCounts faults() const;
  void Count(HealKind kind) { ++heals_[static_cast<size_t>(kind)]; }
  HealCounts heals() const;
  // A chunk's bits are read to compare them with its checksum, before a vote.
  void CountVerified() {
    num_verified_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t num_verified() const { return num_verified_; }

 private:
  // Where a piece's bits lie in a segment.
  struct Range {
    size_t offset;
    size_t size;
  };
  Range RangeOf(const layout::Piece& piece) const;
  struct Slot;
  Slot* SlotOf(size_t index, int64_t version) const;
  void Adopt(NodeRank node);

  const layout::Layout* const layout_;
  std::vector<size_t> first_;  // by bucket, by owner: into entries_
  std::vector<Entry> entries_;
  std::unique_ptr<device::SharedBuffer> memory_;  // null: none
  // Likewise; of own chunks. In the memory, or without one in `own_errors_`.
  std::vector<std::span<ErrorSums>> errors_;
  std::vector<std::vector<ErrorSums>> own_errors_;
  std::vector<uint64_t> sealed_;  // by bucket: its part of the digest
  uint64_t digest_ = 0;
  std::array<std::atomic<uint64_t>, kNumChunkFaults> faults_{};
  std::array<std::atomic<uint64_t>, kNumHealKinds> heals_{};
  std::atomic<uint64_t> num_verified_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_PUBLISHED_CHUNKS_H_
