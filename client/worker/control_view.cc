#include "client/worker/control_view.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/base/futex.h"

namespace ballast::worker {
namespace {

using proto::ControlBlockHeader;
using proto::DaemonArea;
using proto::GroupValues;
using proto::StepRecord;
using proto::WorkerArea;

constexpr size_t kRecordBytes = sizeof(StepRecord);
static_assert(kRecordBytes % 8 == 0);

// Copies what the other side may be writing: tearing is possible between
// words and is found by the caller's sequence check, a data race is not.
// acquire: the caller's second look at the sequence word comes after this
// (a fence would do as well, but the thread sanitizer knows none).
void CopyShared(void* to, const void* from, size_t size_bytes) {
  auto* source = static_cast<const uint32_t*>(from);
  auto* target = static_cast<char*>(to);
  for (size_t i = 0; i < size_bytes / 4; ++i) {
    const uint32_t value = __atomic_load_n(source + i, __ATOMIC_ACQUIRE);
    std::memcpy(target + 4 * i, &value, 4);
  }
}

// StepRecord has an atomic member: the same bytes without it.
struct PlainRecord {
  uint64_t word;
  uint32_t outcome;
  uint32_t fallbacks;
  int64_t weight_version;
  int64_t optimizer_step;
  double grad_norm;
  double clip_factor;
  double lr;
  double relative_error;
  uint64_t wire_bytes_sent;
  uint64_t wire_bytes_received;
  uint64_t payload_bytes;
  double seconds;
  double stage_seconds[6];
};
static_assert(sizeof(PlainRecord) == kRecordBytes);
static_assert(offsetof(PlainRecord, stage_seconds) ==
              offsetof(StepRecord, stage_seconds));

PathQuality ToQuality(const proto::PathQuality& quality) {
  return {.sampled = quality.sampled,
          .relative_error = quality.relative_error,
          .clipped_share = quality.clipped_share,
          .residual_norm = quality.residual_norm,
          .num_wider = quality.num_wider};
}

StepResult ToResult(const PlainRecord& record) {
  StepResult result;
  result.step = proto::StepOf(record.word);
  result.weight_version = record.weight_version;
  result.optimizer_step = record.optimizer_step;
  result.skipped =
      record.outcome == static_cast<uint32_t>(proto::StepOutcome::kSkipped);
  result.loaded =
      record.outcome == static_cast<uint32_t>(proto::StepOutcome::kLoaded);
  result.fallbacks = record.fallbacks;
  result.grad_norm = record.grad_norm;
  result.clip_factor = record.clip_factor;
  result.lr = record.lr;
  result.relative_error = record.relative_error;
  result.wire_bytes_sent = record.wire_bytes_sent;
  result.wire_bytes_received = record.wire_bytes_received;
  result.payload_bytes = record.payload_bytes;
  result.seconds = record.seconds;
  std::copy(std::begin(record.stage_seconds), std::end(record.stage_seconds),
            result.stage_seconds);
  return result;
}

}  // namespace

absl::StatusOr<ControlView> ControlView::Create(std::span<std::byte> bytes,
                                                int num_buckets, int num_groups,
                                                int num_units) {
  ControlBlockHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::DataLossError("control block is shorter than its header");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != proto::kControlBlockMagic ||
      header.version != proto::kControlBlockVersion) {
    return absl::DataLossError(
        absl::StrCat("control block has format ", header.version,
                     ", this library knows ", proto::kControlBlockVersion,
                     ": use the library of the daemon's "
                     "version"));
  }
  if (num_buckets < 0 || header.num_buckets > proto::kMaxBuckets ||
      header.num_buckets != num_buckets || header.num_groups != num_groups ||
      header.num_units > proto::kMaxUnits || header.num_units != num_units) {
    return absl::DataLossError("control block disagrees with the attach");
  }
  const auto layout = proto::ControlBlockLayout::For(
      header.num_buckets, header.num_groups, header.num_units);
  if (layout.size_bytes > bytes.size()) {
    return absl::DataLossError("control block ends before its last part");
  }
  ControlView view;
  std::byte* const base = bytes.data();
  view.daemon_ =
      reinterpret_cast<DaemonArea*>(base + layout.daemon_area_offset);
  view.worker_ =
      reinterpret_cast<WorkerArea*>(base + layout.worker_area_offset);
  view.groups_ = reinterpret_cast<GroupValues*>(base + layout.groups_offset);
  view.cursor_ = base + layout.cursor_offset;
  view.rank0_cursor_ = base + layout.rank0_cursor_offset;
  view.pushed_ = reinterpret_cast<proto::Word*>(base + layout.pushed_offset);
  view.published_ =
      reinterpret_cast<const proto::Word*>(base + layout.published_offset);
  view.wanted_ = reinterpret_cast<proto::Word*>(base + layout.wanted_offset);
  view.held_ = reinterpret_cast<const proto::Word*>(base + layout.held_offset);
  return view;
}

uint64_t ControlView::open() const {
  return daemon_->open.load(std::memory_order_acquire);
}
uint64_t ControlView::committed() const {
  return daemon_->committed.load(std::memory_order_acquire);
}
uint64_t ControlView::published(int bucket) const {
  // Acquire: the weights that this word announces are read after it (I2).
  return published_[bucket].load(std::memory_order_acquire);
}

std::optional<StepResult> ControlView::Record(uint64_t word) const {
  const StepRecord& slot = daemon_->records[proto::StepOf(word) & 1];
  if (slot.word.load(std::memory_order_acquire) != word) return std::nullopt;
  PlainRecord record;
  CopyShared(&record, &slot, kRecordBytes);
  // A daemon that writes none leaves another step's word, or 0.
  const proto::StepQuality& told = daemon_->qualities[proto::StepOf(word) & 1];
  const bool has_quality = told.word.load(std::memory_order_acquire) == word;
  proto::PathQuality quality[proto::kNumQualityPaths];
  CopyShared(quality, told.paths, sizeof(quality));
  if (slot.word.load(std::memory_order_relaxed) != word) return std::nullopt;
  record.word = word;
  StepResult result = ToResult(record);
  if (has_quality) {
    result.gradients = ToQuality(quality[0]);
    result.weights = ToQuality(quality[1]);
  }
  return result;
}

bool ControlView::ReadRank0Cursor(uint64_t word, std::string* cursor) const {
  if (daemon_->rank0_cursor_word.load(std::memory_order_acquire) != word) {
    return false;
  }
  const uint32_t size =
      __atomic_load_n(&daemon_->rank0_cursor_bytes, __ATOMIC_RELAXED);
  if (size > proto::kMaxCursorBytes) return false;
  cursor->resize((size + 3) / 4 * 4);  // it is read in whole words
  CopyShared(cursor->data(), rank0_cursor_, cursor->size());
  cursor->resize(size);
  return daemon_->rank0_cursor_word.load(std::memory_order_relaxed) == word;
}

std::optional<Failure> ControlView::FailureAfter(uint32_t seen) const {
  const uint32_t count = daemon_->failure.load(std::memory_order_acquire);
  if (count == seen || count % 2 != 0) return std::nullopt;
  int32_t code;
  uint32_t fatal;
  char text[proto::kMaxErrorBytes];
  Failure failure;
  CopyShared(&code, &daemon_->failure_code, sizeof(code));
  CopyShared(&fatal, &daemon_->failure_fatal, sizeof(fatal));
  CopyShared(&failure.word, &daemon_->failure_word, sizeof(failure.word));
  CopyShared(text, daemon_->failure_text, sizeof(text));
  if (daemon_->failure.load(std::memory_order_relaxed) != count) {
    return std::nullopt;  // being written again: the next look sees it
  }
  failure.count = count;
  failure.code = static_cast<absl::StatusCode>(code);
  if (code <= 0 || code > 16) failure.code = absl::StatusCode::kUnknown;
  failure.is_fatal = fatal != 0;
  failure.text.assign(text, strnlen(text, sizeof(text)));
  return failure;
}

bool ControlView::IsClosed() const {
  return daemon_->closed.load(std::memory_order_acquire) == 1;
}

void ControlView::StoreInput(uint64_t word, std::span<const GroupValues> groups,
                             std::string_view cursor) {
  std::copy(groups.begin(), groups.end(), groups_);
  const auto bytes = std::as_bytes(std::span(cursor));
  std::copy(bytes.begin(), bytes.end(), cursor_);  // may be empty
  __atomic_store_n(&worker_->cursor_bytes, static_cast<uint32_t>(cursor.size()),
                   __ATOMIC_RELAXED);
  worker_->step_input.store(word, std::memory_order_release);
}

void ControlView::StorePushed(int bucket, uint64_t word) {
  // Release: the gradient was written before it is announced.
  pushed_[bucket].store(word, std::memory_order_release);
}

void ControlView::StoreWanted(int unit, uint64_t request) {
  // Release: of a unit that is given back nothing is read after it.
  wanted_[unit].store(request, std::memory_order_release);
}

uint64_t ControlView::held(int unit) const {
  // Acquire: the weights that this word announces are read after it (I2).
  return held_[unit].load(std::memory_order_acquire);
}

absl::Status ControlView::Refusal() const {
  const uint32_t count = daemon_->refusal.load(std::memory_order_acquire);
  int32_t code;
  char text[proto::kMaxErrorBytes];
  CopyShared(&code, &daemon_->refusal_code, sizeof(code));
  CopyShared(text, daemon_->refusal_text, sizeof(text));
  const bool is_whole =
      count % 2 == 0 &&
      daemon_->refusal.load(std::memory_order_relaxed) == count;
  if (!is_whole || code <= 0 || code > 16) {
    return absl::ResourceExhaustedError("the daemon refused a gather");
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      std::string(text, strnlen(text, sizeof(text))));
}

uint32_t ControlView::wake() const {
  return daemon_->wake.load(std::memory_order_acquire);
}

void ControlView::Sleep(uint32_t seen, absl::Duration timeout) const {
  base::FutexWait(&daemon_->wake, seen, timeout, base::FutexScope::kShared);
}

}  // namespace ballast::worker
