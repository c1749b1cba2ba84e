#include "server/optimizer/undo_log.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/device/kept_version.h"

namespace ballast::optimizer {
namespace {

constexpr uint64_t kMagic = 0x31444e55'4c4c4142;  // BALLUND1
constexpr uint64_t kPage = proto::kPageSize;
constexpr uint64_t kArraysOffset = 64;  // in a record
constexpr uint32_t kMaxThreads = 1 << 16;

struct UndoHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_moments;
  uint32_t num_threads;
  uint32_t reserved;
  int64_t num_chunks;
  int64_t capacity;
  char layout_digest[16];

  bool operator==(const UndoHeader&) const = default;
};
static_assert(sizeof(UndoHeader) <= kPage);

uint64_t RoundToPage(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

uint64_t RecordsOffset(int64_t num_chunks) {
  return kPage + RoundToPage(num_chunks * sizeof(uint64_t));
}

uint64_t RecordBytes(int64_t capacity, int num_moments) {
  return RoundToPage(kArraysOffset +
                     (1 + num_moments) * capacity * sizeof(float));
}

uint64_t LogBytes(const UndoHeader& header) {
  return RecordsOffset(header.num_chunks) +
         header.num_threads * RecordBytes(header.capacity, header.num_moments);
}

template <typename Chunks>
int64_t CapacityOf(const Chunks& chunks) {
  int64_t capacity = 0;
  for (const auto& chunk : chunks) {
    capacity = std::max(capacity, chunk.state.end - chunk.state.begin);
  }
  return capacity;
}

UndoHeader MakeHeader(const layout::Layout& layout, int64_t num_chunks,
                      int64_t capacity, int num_moments, int num_threads) {
  UndoHeader header = {};
  header.magic = kMagic;
  header.version = UndoLog::kVersion;
  header.num_moments = num_moments;
  header.num_threads = num_threads;
  header.num_chunks = num_chunks;
  header.capacity = capacity;
  layout.digest().copy(header.layout_digest, sizeof(header.layout_digest));
  return header;
}

std::span<float> ArrayOf(ShardState* state, int index) {
  return index == 0 ? state->master() : state->moment(index - 1);
}

}  // namespace

struct UndoLog::Record {
  std::atomic<uint64_t> word;
  int64_t chunk;
  int64_t elements;
  std::atomic<int64_t> saved;
};

std::vector<UndoLog::Chunk> UndoLog::ChunksOf(const layout::Layout& layout,
                                              NodeRank node) {
  std::vector<Chunk> chunks;
  for (const layout::Bucket& bucket : layout.buckets()) {
    for (const layout::Chunk& chunk : layout.shard(bucket.id, node).chunks) {
      chunks.push_back({{chunk.state_begin, chunk.state_end}, {}});
      for (const layout::Piece& piece : chunk.pieces) {
        chunks.back().pieces.push_back(
            {piece.state_offset, piece.state_offset + piece.size()});
      }
    }
  }
  return chunks;
}

UndoLog::UndoLog(std::unique_ptr<device::SharedBuffer> buffer,
                 std::vector<Chunk> chunks, int num_moments, int num_threads)
    : buffer_(std::move(buffer)),
      chunks_(std::move(chunks)),
      num_moments_(num_moments),
      num_threads_(num_threads),
      num_chunks_(static_cast<int64_t>(chunks_.size())),
      capacity_(CapacityOf(chunks_)) {}

absl::StatusOr<std::unique_ptr<UndoLog>> UndoLog::Create(
    device::Device* device, const layout::Layout& layout, NodeRank node,
    int num_moments, int num_threads) {
  std::vector<Chunk> chunks = ChunksOf(layout, node);
  const UndoHeader header = MakeHeader(
      layout, chunks.size(), CapacityOf(chunks), num_moments, num_threads);
  ASSIGN_OR_RETURN(std::unique_ptr<device::SharedBuffer> buffer,
                   device->AllocateShared(LogBytes(header), kName));
  if (buffer->is_adopted()) {
    return Open(std::move(buffer), layout, node, num_moments);
  }
  std::memcpy(buffer->bytes().data(), &header, sizeof(header));
  return std::unique_ptr<UndoLog>(new UndoLog(
      std::move(buffer), std::move(chunks), num_moments, num_threads));
}

absl::StatusOr<std::unique_ptr<UndoLog>> UndoLog::Open(
    std::unique_ptr<device::SharedBuffer> buffer, const layout::Layout& layout,
    NodeRank node, int num_moments) {
  std::vector<Chunk> chunks = ChunksOf(layout, node);
  UndoHeader header = {};
  if (buffer->size_bytes() >= sizeof(header)) {
    std::memcpy(&header, buffer->bytes().data(), sizeof(header));
  }
  if (header.magic == kMagic) {
    RETURN_IF_ERROR(device::CheckKeptVersion(kWhat, header.version, kVersion));
  }
  const UndoHeader expected =
      MakeHeader(layout, chunks.size(), CapacityOf(chunks), num_moments,
                 std::min(header.num_threads, kMaxThreads));
  if (header != expected || buffer->size_bytes() < LogBytes(expected)) {
    return absl::DataLossError(
        "the undo log is damaged, or that of another layout");
  }
  return std::unique_ptr<UndoLog>(new UndoLog(
      std::move(buffer), std::move(chunks), num_moments, header.num_threads));
}

UndoLog::Record* UndoLog::record(int thread) const {
  return reinterpret_cast<Record*>(
      buffer_->bytes().data() + RecordsOffset(num_chunks_) +
      thread * RecordBytes(capacity_, num_moments_));
}

float* UndoLog::array(int thread, int index) const {
  std::byte* arrays =
      reinterpret_cast<std::byte*>(record(thread)) + kArraysOffset;
  return reinterpret_cast<float*>(arrays) + index * capacity_;
}

std::atomic<uint64_t>* UndoLog::done() const {
  return reinterpret_cast<std::atomic<uint64_t>*>(buffer_->bytes().data() +
                                                  kPage);
}

bool UndoLog::IsDone(int64_t chunk, uint64_t word) const {
  return done()[chunk].load(std::memory_order_acquire) == word;
}

void UndoLog::Begin(int thread, int64_t chunk, uint64_t word) {
  const Range range = chunks_[chunk].state;
  Record* const open = record(thread);
  open->chunk = chunk;
  open->elements = range.end - range.begin;
  open->saved.store(0, std::memory_order_relaxed);
  BALLAST_FAILPOINT("optimizer.undo.named");
  kernels::StoreInOrder(&open->word, word);
}

kernels::StepUndo UndoLog::ForPiece(int thread, int64_t chunk,
                                    int64_t state_offset) const {
  const int64_t first = state_offset - chunks_[chunk].state.begin;
  const auto at = [&](int index) {
    return index <= num_moments_ ? array(thread, index) + first : nullptr;
  };
  return {at(0), at(1), at(2), &record(thread)->saved, first};
}

void UndoLog::Finish(int thread, int64_t chunk, uint64_t word) {
  kernels::StoreInOrder(&done()[chunk], word);
  BALLAST_FAILPOINT("optimizer.undo.done");
  kernels::StoreInOrder(&record(thread)->word, uint64_t{0});
}

bool UndoLog::has_open_chunks() const {
  for (int thread = 0; thread < num_threads_; ++thread) {
    if (record(thread)->word.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

void UndoLog::Restore(int thread, const Chunk& chunk, ShardState* state) const {
  const int64_t end =
      chunk.state.begin + record(thread)->saved.load(std::memory_order_acquire);
  for (const Range& piece : chunk.pieces) {
    const int64_t size = std::min(piece.end, end) - piece.begin;
    if (size <= 0) break;
    for (int i = 0; i <= num_moments_; ++i) {
      std::memcpy(ArrayOf(state, i).data() + piece.begin,
                  array(thread, i) + piece.begin - chunk.state.begin,
                  size * sizeof(float));
    }
  }
}

absl::StatusOr<std::vector<RestoredChunk>> UndoLog::RestoreOpenChunks(
    ShardState* state) {
  std::vector<RestoredChunk> restored;
  for (int thread = 0; thread < num_threads_; ++thread) {
    Record* const open = record(thread);
    const uint64_t word = open->word.load(std::memory_order_acquire);
    if (word == 0) continue;
    const int64_t chunk = open->chunk;
    const int64_t saved = open->saved.load(std::memory_order_acquire);
    if (chunk < 0 || chunk >= num_chunks_ ||
        open->elements !=
            chunks_[chunk].state.end - chunks_[chunk].state.begin ||
        saved < 0 || saved > open->elements) {
      return absl::DataLossError(absl::StrCat(
          "undo record ", thread, " names ", saved, " of ", open->elements,
          " elements of chunk ", chunk, ": it is damaged"));
    }
    if (!IsDone(chunk, word)) {
      Restore(thread, chunks_[chunk], state);
      restored.push_back({chunk, Generation(proto::GenerationOf(word)),
                          Step(proto::StepOf(word))});
    }
    BALLAST_FAILPOINT("optimizer.undo.restored");
    kernels::StoreInOrder(&open->word, uint64_t{0});
  }
  return restored;
}

uint64_t UndoLog::BytesFor(int num_threads) const {
  return RecordsOffset(num_chunks_) +
         num_threads * RecordBytes(capacity_, num_moments_);
}

void UndoLog::CopyTo(std::span<std::byte> memory, int num_threads) const {
  UndoHeader header;
  std::memcpy(&header, buffer_->bytes().data(), sizeof(header));
  header.num_threads = num_threads;
  std::memcpy(memory.data(), &header, sizeof(header));
  std::memcpy(memory.data() + kPage, done(), num_chunks_ * sizeof(uint64_t));
}

void UndoLog::Retire() {
  std::memset(buffer_->bytes().data(), 0, sizeof(UndoHeader));
}

void UndoLog::Clear() {
  for (int thread = 0; thread < num_threads_; ++thread) {
    record(thread)->word.store(0, std::memory_order_release);
  }
  for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
    done()[chunk].store(0, std::memory_order_release);
  }
}

}  // namespace ballast::optimizer
