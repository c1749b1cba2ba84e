#include "server/ipc/control_block_view.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/futex.h"
#include "server/base/status_macros.h"

namespace ballast::ipc {
namespace {

// Copies what the other side may be writing right now: every word is loaded
// once, so that a value that was checked is the value that is used.
void CopyOnce(std::byte* to, const std::byte* from, size_t size) {
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
    uint64_t word;
    __atomic_load(reinterpret_cast<const uint64_t*>(from + i), &word,
                  __ATOMIC_RELAXED);
    std::memcpy(to + i, &word, sizeof(word));
  }
  for (; i < size; ++i) {
    __atomic_load(from + i, to + i, __ATOMIC_RELAXED);
  }
}

// Writes what the other side may be reading right now, in whole words. Each is
// a release store, so that none can be seen before what was stored earlier: the
// mark that says "being written".
template <typename Word = uint64_t>
void StoreWords(void* to, const void* from, size_t size) {
  for (size_t i = 0; i < size; i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, static_cast<const std::byte*>(from) + i, sizeof(word));
    __atomic_store(reinterpret_cast<Word*>(static_cast<std::byte*>(to) + i),
                   &word, __ATOMIC_RELEASE);
  }
}

// The part of DaemonArea that StoreFailure writes.
struct Failure {
  int32_t code;
  uint32_t is_fatal;
  uint64_t word;
  char text[proto::kMaxErrorBytes];
};
// The part of it that StoreRefusal writes, in words of 32 bits.
struct Refusal {
  int32_t code;
  char text[proto::kMaxErrorBytes];
};
static_assert(offsetof(proto::DaemonArea, refusal_text) ==
              offsetof(proto::DaemonArea, refusal_code) +
                  offsetof(Refusal, text));
static_assert(sizeof(Refusal) % sizeof(uint32_t) == 0);

constexpr size_t kFailureOffset = offsetof(proto::DaemonArea, failure_code);
static_assert(kFailureOffset % sizeof(uint64_t) == 0);
static_assert(sizeof(Failure) % sizeof(uint64_t) == 0);
static_assert(offsetof(proto::DaemonArea, failure_fatal) ==
              kFailureOffset + offsetof(Failure, is_fatal));
static_assert(offsetof(proto::DaemonArea, failure_word) ==
              kFailureOffset + offsetof(Failure, word));
static_assert(offsetof(proto::DaemonArea, failure_text) ==
              kFailureOffset + offsetof(Failure, text));
static_assert(offsetof(proto::StepRecord, outcome) == sizeof(proto::Word));
static_assert(sizeof(proto::StepRecord) % sizeof(uint64_t) == 0);
static_assert(offsetof(proto::StepQuality, paths) == sizeof(proto::Word));
static_assert(sizeof(proto::StepQuality) % sizeof(uint64_t) == 0);

}  // namespace

uint64_t ControlBlockView::SizeBytes(int num_buckets, int num_groups,
                                     int num_units) {
  return proto::ControlBlockLayout::For(num_buckets, num_groups, num_units)
      .size_bytes;
}

absl::Status ControlBlockView::CheckBounds(std::span<std::byte> memory,
                                           int num_buckets, int num_groups,
                                           int num_units) {
  if (num_buckets < 0 || num_buckets > proto::kMaxBuckets || num_groups < 1 ||
      num_groups > proto::kMaxParamGroups || num_units < 0 ||
      num_units > proto::kMaxUnits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a control block of ", num_buckets, " buckets, ", num_groups,
        " param groups and ", num_units, " units; at most ", proto::kMaxBuckets,
        ", ", proto::kMaxParamGroups, " and ", proto::kMaxUnits,
        " are possible"));
  }
  const uint64_t size_bytes = SizeBytes(num_buckets, num_groups, num_units);
  if (memory.size() < size_bytes ||
      reinterpret_cast<uintptr_t>(memory.data()) % proto::kPageSize != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a control block needs ", size_bytes,
                     " bytes on a page, not ", memory.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ControlBlockView> ControlBlockView::Create(
    std::span<std::byte> memory, int num_buckets, int num_groups,
    int num_units) {
  ASSIGN_OR_RETURN(ControlBlockView view,
                   Adopt(memory, num_buckets, num_groups, num_units));
  const proto::ControlBlockLayout& layout = view.layout_;
  const proto::ControlBlockHeader header = {
      .magic = proto::kControlBlockMagic,
      .version = proto::kControlBlockVersion,
      .num_buckets = static_cast<uint32_t>(num_buckets),
      .num_groups = static_cast<uint32_t>(num_groups),
      .num_units = static_cast<uint32_t>(num_units),
      .size_bytes = layout.size_bytes,
      .daemon_area_offset = layout.daemon_area_offset,
      .worker_area_offset = layout.worker_area_offset,
      .groups_offset = layout.groups_offset,
      .cursor_offset = layout.cursor_offset,
      .pushed_offset = layout.pushed_offset,
      .consumed_offset = layout.consumed_offset,
      .published_offset = layout.published_offset,
      .wanted_offset = layout.wanted_offset,
      .held_offset = layout.held_offset,
      .rank0_cursor_offset = layout.rank0_cursor_offset,
  };
  std::memcpy(memory.data(), &header, sizeof(header));
  return view;
}

absl::StatusOr<ControlBlockView> ControlBlockView::Adopt(
    std::span<std::byte> memory, int num_buckets, int num_groups,
    int num_units) {
  RETURN_IF_ERROR(CheckBounds(memory, num_buckets, num_groups, num_units));
  return ControlBlockView(memory.data(), num_buckets, num_groups, num_units);
}

ControlBlockView::ControlBlockView(std::byte* memory, int num_buckets,
                                   int num_groups, int num_units)
    : memory_(memory),
      num_buckets_(num_buckets),
      num_groups_(num_groups),
      num_units_(num_units),
      layout_(
          proto::ControlBlockLayout::For(num_buckets, num_groups, num_units)) {}

proto::DaemonArea* ControlBlockView::daemon_area() const {
  return reinterpret_cast<proto::DaemonArea*>(memory_ +
                                              layout_.daemon_area_offset);
}

proto::WorkerArea* ControlBlockView::worker_area() const {
  return reinterpret_cast<proto::WorkerArea*>(memory_ +
                                              layout_.worker_area_offset);
}

proto::Word* ControlBlockView::words(uint64_t offset, int index) const {
  return reinterpret_cast<proto::Word*>(memory_ + offset) + index;
}

uint64_t ControlBlockView::ReadPushed(BucketId bucket) const {
  // acquire: the gradient was written before.
  return words(layout_.pushed_offset, bucket.value())
      ->load(std::memory_order_acquire);
}

uint64_t ControlBlockView::ReadWanted(int unit) const {
  return words(layout_.wanted_offset, unit)->load(std::memory_order_acquire);
}

uint64_t ControlBlockView::ReadStepInput() const {
  // acquire: group values and cursor were written before.
  return worker_area()->step_input.load(std::memory_order_acquire);
}

absl::Status ControlBlockView::ReadStepValues(
    std::span<proto::GroupValues> groups, std::string* cursor) const {
  uint32_t cursor_bytes;
  __atomic_load(&worker_area()->cursor_bytes, &cursor_bytes, __ATOMIC_RELAXED);
  if (cursor_bytes > proto::kMaxCursorBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cursor of ", cursor_bytes, " bytes; at most ",
                     proto::kMaxCursorBytes, " are allowed"));
  }
  const size_t num_groups = std::min<size_t>(groups.size(), num_groups_);
  CopyOnce(reinterpret_cast<std::byte*>(groups.data()),
           memory_ + layout_.groups_offset,
           num_groups * sizeof(proto::GroupValues));
  cursor->resize(cursor_bytes);
  CopyOnce(reinterpret_cast<std::byte*>(cursor->data()),
           memory_ + layout_.cursor_offset, cursor_bytes);
  return absl::OkStatus();
}

void ControlBlockView::StoreRank0Cursor(uint64_t word,
                                        std::string_view cursor) {
  proto::DaemonArea* const area = daemon_area();
  area->rank0_cursor_word.store(0, std::memory_order_relaxed);
  const size_t words = cursor.size() / sizeof(uint64_t) * sizeof(uint64_t);
  std::byte* const to = memory_ + layout_.rank0_cursor_offset;
  StoreWords(to, cursor.data(), words);
  StoreWords<uint8_t>(to + words, cursor.data() + words, cursor.size() - words);
  __atomic_store_n(&area->rank0_cursor_bytes,
                   static_cast<uint32_t>(cursor.size()), __ATOMIC_RELEASE);
  area->rank0_cursor_word.store(word, std::memory_order_release);
}

void ControlBlockView::StorePushed(BucketId bucket, uint64_t word) {
  words(layout_.pushed_offset, bucket.value())
      ->store(word, std::memory_order_release);
}

void ControlBlockView::StoreStepInput(
    uint64_t word, std::span<const proto::GroupValues> groups,
    std::string_view cursor) {
  const size_t num_groups = std::min<size_t>(groups.size(), num_groups_);
  const size_t size = std::min<size_t>(cursor.size(), proto::kMaxCursorBytes);
  std::memcpy(memory_ + layout_.groups_offset, groups.data(),
              num_groups * sizeof(proto::GroupValues));
  std::memcpy(memory_ + layout_.cursor_offset, cursor.data(), size);
  worker_area()->cursor_bytes = static_cast<uint32_t>(size);
  worker_area()->step_input.store(word, std::memory_order_release);
}

void ControlBlockView::StoreConsumed(BucketId bucket, uint64_t word) {
  words(layout_.consumed_offset, bucket.value())
      ->store(word, std::memory_order_release);
}

void ControlBlockView::StorePublished(BucketId bucket, uint64_t word) {
  // release: the weights are written before (I2).
  words(layout_.published_offset, bucket.value())
      ->store(word, std::memory_order_release);
}

void ControlBlockView::StoreHeld(int unit, uint64_t word) {
  // release: the weights are written before (I2).
  words(layout_.held_offset, unit)->store(word, std::memory_order_release);
}

uint64_t ControlBlockView::ReadHeld(int unit) const {
  return words(layout_.held_offset, unit)->load(std::memory_order_acquire);
}

void ControlBlockView::StoreOpen(Generation generation, Step step) {
  daemon_area()->open.store(
      proto::SequenceWord(generation.value(), step.value()),
      std::memory_order_release);
}

void ControlBlockView::StoreCommitted(const StepReport& report) {
  const uint64_t word =
      proto::SequenceWord(report.generation.value(), report.step.value());
  proto::StepRecord record{};
  record.outcome = report.outcome;
  record.fallbacks = report.fallbacks;
  record.weight_version = report.weight_version.value();
  record.optimizer_step = report.optimizer_step;
  record.grad_norm = report.grad_norm;
  record.clip_factor = report.clip_factor;
  record.lr = report.lr;
  record.relative_error = report.relative_error;
  record.wire_bytes_sent = report.wire_bytes_sent;
  record.wire_bytes_received = report.wire_bytes_received;
  record.payload_bytes = report.payload_bytes;
  record.seconds = report.seconds;
  std::copy(std::begin(report.stage_seconds), std::end(report.stage_seconds),
            record.stage_seconds);

  proto::StepRecord& shared = daemon_area()->records[report.step.value() & 1];
  // A reader that looks for an older step must not take a mixture for it.
  shared.word.store(0, std::memory_order_relaxed);
  proto::StepQuality& quality =
      daemon_area()->qualities[report.step.value() & 1];
  quality.word.store(0, std::memory_order_release);
  StoreWords(quality.paths, report.quality.data(), sizeof(quality.paths));
  quality.word.store(word, std::memory_order_release);
  StoreWords(&shared.outcome, &record.outcome,
             sizeof(record) - sizeof(record.word));
  shared.word.store(word, std::memory_order_release);
  daemon_area()->committed.store(word, std::memory_order_release);
}

void ControlBlockView::StoreFailure(absl::StatusCode code, bool is_fatal,
                                    uint64_t word, std::string_view text) {
  Failure failure{};  // text ends in NUL
  failure.code = static_cast<int32_t>(code);
  failure.is_fatal = is_fatal ? 1 : 0;
  failure.word = word;
  std::memcpy(failure.text, text.data(),
              std::min(text.size(), sizeof(failure.text) - 1));

  proto::DaemonArea& area = *daemon_area();
  // A sequence lock: odd while the fields change. Only this side writes it;
  // its own count is read back, but nothing here depends on its value.
  const uint32_t odd = area.failure.load(std::memory_order_relaxed) | 1;
  area.failure.store(odd, std::memory_order_relaxed);
  StoreWords(&area.failure_code, &failure, sizeof(failure));
  area.failure.store(odd + 1, std::memory_order_release);
}

bool ControlBlockView::HasFailure(uint64_t word) const {
  const proto::DaemonArea& area = *daemon_area();
  const uint32_t count = area.failure.load(std::memory_order_acquire);
  return count != 0 && count % 2 == 0 && area.failure_word == word;
}

void ControlBlockView::StoreRefusal(absl::StatusCode code,
                                    std::string_view text) {
  Refusal refusal{};  // text ends in NUL
  refusal.code = static_cast<int32_t>(code);
  std::memcpy(refusal.text, text.data(),
              std::min(text.size(), sizeof(refusal.text) - 1));
  proto::DaemonArea& area = *daemon_area();
  // As in StoreFailure.
  const uint32_t odd = area.refusal.load(std::memory_order_relaxed) | 1;
  area.refusal.store(odd, std::memory_order_relaxed);
  StoreWords<uint32_t>(&area.refusal_code, &refusal, sizeof(refusal));
  area.refusal.store(odd + 1, std::memory_order_release);
}

void ControlBlockView::StoreClosed() {
  daemon_area()->closed.store(1, std::memory_order_release);
}

void ControlBlockView::Wake() {
  std::atomic<uint32_t>& wake = daemon_area()->wake;
  wake.fetch_add(1, std::memory_order_release);
  base::FutexWake(&wake, INT_MAX, base::FutexScope::kShared);
}

}  // namespace ballast::ipc
