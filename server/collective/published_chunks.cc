#include "server/collective/published_chunks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "kernels/stochastic.h"
#include "server/base/names.h"
#include "server/base/xxh3.h"

namespace ballast::collective {
namespace {

using kernels::kGolden64;
using kernels::Mix64;

std::string DescribePiece(const layout::Layout& layout,
                          const layout::Piece& piece) {
  return absl::StrCat("elements [", piece.begin, ", ", piece.end, ") of ",
                      base::Quoted(layout.tensor(piece.tensor).name));
}

}  // namespace

uint64_t ExtendChecksum(uint64_t checksum, std::span<const std::byte> bytes) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), checksum);
}

// Pool threads and, after this process, another one.
struct PublishedChunks::Slot {
  std::atomic<uint64_t> checksum;
  std::atomic<int64_t> version;
};

PublishedChunks::PublishedChunks(const layout::Layout* layout, NodeRank node,
                                 std::unique_ptr<device::SharedBuffer> memory)
    : layout_(layout),
      memory_(std::move(memory)),
      sealed_(layout->buckets().size()) {
  size_t next = 0;
  for (const layout::Bucket& bucket : layout->buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      first_.push_back(next);
      next += shard.chunks.size();
    }
  }
  entries_.resize(next);
  errors_.resize(next);
  own_errors_.resize(next);
  if (memory_ != nullptr) Adopt(node);
}

uint64_t PublishedChunks::SizeBytes(const layout::Layout& layout,
                                    NodeRank node) {
  uint64_t bytes = 0;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      bytes += shard.chunks.size() * 2 * sizeof(Slot);
    }
    for (const layout::Chunk& chunk : layout.shard(bucket.id, node).chunks) {
      bytes += chunk.pieces.size() * sizeof(ErrorSums);
    }
  }
  return std::max<uint64_t>(bytes, 1);
}

PublishedChunks::Slot* PublishedChunks::SlotOf(size_t index,
                                               int64_t version) const {
  static_assert(sizeof(Slot) == 16);
  return reinterpret_cast<Slot*>(memory_->bytes().data()) + 2 * index +
         (version & 1);
}

void PublishedChunks::Adopt(NodeRank node) {
  static_assert(std::is_trivially_copyable_v<ErrorSums>);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto read = [this, i](int64_t version) {
      const Slot& slot = *SlotOf(i, version);
      return Entry{slot.checksum.load(std::memory_order_relaxed),
                   WeightVersion(slot.version.load(std::memory_order_acquire))};
    };
    const Entry even = read(0);
    const Entry odd = read(1);
    entries_[i] = even.version < odd.version ? odd : even;
  }
  auto* errors = reinterpret_cast<ErrorSums*>(SlotOf(entries_.size(), 0));
  for (const layout::Bucket& bucket : layout_->buckets()) {
    const layout::Shard& shard = layout_->shard(bucket.id, node);
    for (size_t i = 0; i < shard.chunks.size(); ++i) {
      const size_t count = shard.chunks[i].pieces.size();
      errors_[IndexOf({bucket.id, shard.owner, i})] = {errors, count};
      errors += count;
    }
  }
  SealAll();
}

void PublishedChunks::Set(const ChunkId& id, const Entry& entry) {
  const size_t index = IndexOf(id);
  entries_[index] = entry;
  if (memory_ == nullptr) return;
  const int64_t version = entry.version.value();
  Slot* const slot = SlotOf(index, version);
  slot->checksum.store(entry.checksum, std::memory_order_release);
  slot->version.store(version, std::memory_order_release);
}

void PublishedChunks::Initialize(std::span<const std::byte> weights,
                                 WeightVersion version) {
  for (const layout::Bucket& bucket : layout_->buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        const ChunkId id{bucket.id, shard.owner, i};
        Set(id, {Checksum(id, weights), version});
      }
    }
    Seal(bucket.id);
  }
}

std::string PublishedChunks::Describe(const ChunkId& id) const {
  const layout::Chunk& of = chunk(id);
  std::string text = DescribePiece(*layout_, of.pieces.front());
  if (of.pieces.size() > 1) {
    absl::StrAppend(&text, " to ", DescribePiece(*layout_, of.pieces.back()));
  }
  return text;
}

PublishedChunks::Range PublishedChunks::RangeOf(
    const layout::Piece& piece) const {
  const size_t size = SizeOf(layout_->tensor(piece.tensor).dtype);
  return {layout_->place(piece.tensor).weight_offset + piece.begin * size,
          piece.size() * size};
}

uint64_t PublishedChunks::Checksum(const ChunkId& id,
                                   std::span<const std::byte> weights) const {
  uint64_t checksum = 0;
  for (const layout::Piece& piece : chunk(id).pieces) {
    const auto [offset, size] = RangeOf(piece);
    checksum = ExtendChecksum(checksum, weights.subspan(offset, size));
  }
  return checksum;
}

size_t PublishedChunks::BytesOf(const ChunkId& id) const {
  size_t bytes = 0;
  for (const layout::Piece& piece : chunk(id).pieces) {
    bytes += RangeOf(piece).size;
  }
  return bytes;
}

uint64_t PublishedChunks::ChecksumOfCopy(
    const ChunkId& id, std::span<const std::byte> copy) const {
  uint64_t checksum = 0;
  for (const layout::Piece& piece : chunk(id).pieces) {
    const size_t size = RangeOf(piece).size;
    checksum = ExtendChecksum(checksum, copy.first(size));
    copy = copy.subspan(size);
  }
  return checksum;
}

void PublishedChunks::CopyOut(const ChunkId& id,
                              std::span<const std::byte> weights,
                              std::span<std::byte> copy) const {
  for (const layout::Piece& piece : chunk(id).pieces) {
    const auto [offset, size] = RangeOf(piece);
    std::memcpy(copy.data(), weights.data() + offset, size);
    copy = copy.subspan(size);
  }
}

void PublishedChunks::CopyIn(const ChunkId& id, std::span<const std::byte> copy,
                             std::span<std::byte> weights) const {
  for (const layout::Piece& piece : chunk(id).pieces) {
    const auto [offset, size] = RangeOf(piece);
    std::memcpy(weights.data() + offset, copy.data(), size);
    copy = copy.subspan(size);
  }
}

std::span<ErrorSums> PublishedChunks::ErrorsOf(const ChunkId& id,
                                               size_t num_runs) {
  const size_t index = IndexOf(id);
  if (errors_[index].size() == num_runs) return errors_[index];
  own_errors_[index].assign(num_runs, ErrorSums());
  return errors_[index] = own_errors_[index];
}

void PublishedChunks::Seal(BucketId bucket) {
  uint64_t sum = 0;
  for (const layout::Shard& shard : layout_->bucket(bucket).shards) {
    size_t index = IndexOf({bucket, shard.owner, 0});
    for (size_t i = 0; i < shard.chunks.size(); ++i, ++index) {
      const Entry& entry = entries_[index];
      sum +=
          Mix64(Mix64(index + kGolden64) ^ Mix64(entry.checksum + kGolden64) ^
                static_cast<uint64_t>(entry.version.value()));
    }
  }
  digest_ += sum - sealed_[bucket.value()];
  sealed_[bucket.value()] = sum;
}

void PublishedChunks::SealAll() {
  digest_ = 0;
  std::ranges::fill(sealed_, 0);
  for (const layout::Bucket& bucket : layout_->buckets()) Seal(bucket.id);
}

ChunkFaultCounts PublishedChunks::faults() const {
  ChunkFaultCounts counts;
  for (int i = 0; i < kNumChunkFaults; ++i) counts[i] = faults_[i];
  return counts;
}

HealCounts PublishedChunks::heals() const {
  HealCounts counts;
  for (int i = 0; i < kNumHealKinds; ++i) counts[i] = heals_[i];
  return counts;
}

}  // namespace ballast::collective
