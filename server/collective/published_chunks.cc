#include "server/collective/published_chunks.h"

#include <algorithm>
#include <cstring>

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

PublishedChunks::PublishedChunks(const layout::Layout* layout)
    : layout_(layout), sealed_(layout->buckets().size()) {
  size_t next = 0;
  for (const layout::Bucket& bucket : layout->buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      first_.push_back(next);
      next += shard.chunks.size();
    }
  }
  entries_.resize(next);
}

void PublishedChunks::Initialize(std::span<const std::byte> weights,
                                 WeightVersion version) {
  for (const layout::Bucket& bucket : layout_->buckets()) {
    for (const layout::Shard& shard : bucket.shards) {
      for (size_t i = 0; i < shard.chunks.size(); ++i) {
        const ChunkId id{bucket.id, shard.owner, i};
        entry(id) = {Checksum(id, weights), version};
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
