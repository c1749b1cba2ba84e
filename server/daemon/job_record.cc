#include "server/daemon/job_record.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"

namespace ballast::daemon {
namespace {

constexpr uint64_t kMagic = 0x31424f4a'4c4c4142;  // BALLJOB1
constexpr uint32_t kVersion = 2;
constexpr uint32_t kNotResident = 3;
constexpr uint32_t kNewestVersion = 4;
constexpr uint64_t kPage = proto::kPageSize;
// Two slots each. Of outcomes: 256 param groups take 48 KiB, rank 0's cursor
// 64 KiB.
constexpr uint64_t kOutcomeBytes = 2 * (128 << 10);
constexpr uint64_t kNotesBytes = 2 * (64 << 10);
constexpr int kMaxLocalRanks = 1024;  // limits.max_workers_per_job

uint64_t RoundToPage(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

void AddTo(const membership::BudgetState& budget, v1::KeptOutcome* kept) {
  for (const auto& tensors : budget) {
    v1::KeptBudget* const path = kept->add_paths();
    for (const membership::TensorBudget& tensor : tensors) {
      path->add_codecs(static_cast<int32_t>(tensor.codec));
      path->add_calm(tensor.calm);
    }
  }
}

// Whether it fits the plan, whoever uses it finds out.
membership::BudgetState FromProto(const v1::KeptOutcome& kept) {
  membership::BudgetState budget;
  for (int p = 0; p < kept.paths_size() && p < layout::kNumPaths; ++p) {
    const v1::KeptBudget& path = kept.paths(p);
    for (int i = 0; i < std::min(path.codecs_size(), path.calm_size()); ++i) {
      budget[p].push_back(
          {.codec = static_cast<layout::CodecId>(path.codecs(i)),
           .calm = path.calm(i)});
    }
  }
  return budget;
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

struct JobRecord::Header {
  std::atomic<uint64_t> magic;
  uint32_t version;
  uint32_t reserved;
  uint64_t job_bytes;
  uint64_t job_checksum;
  std::atomic<int64_t> finished;  // step
  std::atomic<int64_t> loaded;    // likewise
  std::atomic<uint8_t> closed[kMaxLocalRanks];
  int64_t updates;  // before it began; 0 but in version 4
};

absl::StatusOr<std::unique_ptr<JobRecord>> JobRecord::Create(
    device::Device* device, const v1::KeptJob& job) {
  static_assert(sizeof(Header) <= kPage);
  const std::string text = job.SerializeAsString();
  ASSIGN_OR_RETURN(std::unique_ptr<device::SharedBuffer> buffer,
                   device->AllocateShared(kPage + RoundToPage(text.size()) +
                                              kNotesBytes + kOutcomeBytes,
                                          kRecordName));
  std::memcpy(buffer->bytes().data() + kPage, text.data(), text.size());
  auto record = std::unique_ptr<JobRecord>(
      new JobRecord(std::move(buffer), job, /*has_notes=*/true));
  Header* const header = record->header();
  header->version = job.gathers_weights() ? kNotResident : kVersion;
  header->job_bytes = text.size();
  header->job_checksum = Checksum(text);
  return record;
}

absl::StatusOr<std::unique_ptr<JobRecord>> JobRecord::Open(
    std::unique_ptr<device::SharedBuffer> buffer) {
  const std::span<std::byte> bytes = buffer->bytes();
  if (bytes.size() < kPage + kOutcomeBytes) {
    return absl::DataLossError(
        absl::StrCat("a job's record of ", bytes.size(), " bytes"));
  }
  const auto* const header = reinterpret_cast<const Header*>(bytes.data());
  const uint64_t magic = header->magic.load(std::memory_order_acquire);
  if (magic == 0) {
    return absl::UnavailableError(
        "it had not begun yet: its workers open it anew");
  }
  const uint32_t version = header->version;
  if (magic != kMagic) return absl::DataLossError("this is no job's record");
  if (version < 1 || version > kNewestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its record is kept in format ", version, ", this version knows 1 to ",
        kNewestVersion, ": start the version of ballastd that wrote it"));
  }
  const bool has_notes = version > 1;
  const uint64_t slots = kOutcomeBytes + (has_notes ? kNotesBytes : 0);
  if (bytes.size() < kPage + slots) {
    return absl::DataLossError("the job's record is too short");
  }
  const uint64_t room = bytes.size() - kPage - slots;
  const uint64_t size = header->job_bytes;
  v1::KeptJob job;
  const bool is_whole =
      size <= room && RoundToPage(size) == room &&
      Checksum(TextOf(bytes.subspan(kPage, size))) == header->job_checksum &&
      job.ParseFromArray(bytes.data() + kPage, static_cast<int>(size));
  if (!is_whole) return absl::DataLossError("the job's record is damaged");
  auto record = std::unique_ptr<JobRecord>(
      new JobRecord(std::move(buffer), std::move(job), has_notes));
  record->ReadSlots();
  return record;
}

JobRecord::JobRecord(std::unique_ptr<device::SharedBuffer> buffer,
                     v1::KeptJob job, bool has_notes)
    : buffer_(std::move(buffer)),
      job_(std::move(job)),
      outcomes_(buffer_->bytes().last(kOutcomeBytes)) {
  if (!has_notes) return;
  notes_slots_.emplace(
      buffer_->bytes().last(kOutcomeBytes + kNotesBytes).first(kNotesBytes));
}

void JobRecord::ReadSlots() {
  const std::optional<std::string> text = outcomes_.Read();
  if (!notes_slots_.has_value()) {
    v1::PeerFrame outcome;
    if (text.has_value() && outcome.ParseFromString(*text)) last_ = outcome;
    return;
  }
  v1::KeptOutcome kept;
  if (text.has_value() && kept.ParseFromString(*text)) {
    last_ = kept.outcome();
    budget_ = FromProto(kept);
  }
  const std::optional<std::string> notes = notes_slots_->Read();
  if (notes.has_value() && !notes_.ParseFromString(*notes)) notes_.Clear();
}

JobRecord::Header* JobRecord::header() const {
  return reinterpret_cast<Header*>(buffer_->bytes().data());
}

void JobRecord::Begin(Step first, int64_t updates) {
  if (header()->version == kNotResident && updates > 0) {
    header()->version = kNewestVersion;
    header()->updates = updates;
  }
  header()->finished.store(first.value() - 1, std::memory_order_relaxed);
  header()->magic.store(kMagic, std::memory_order_release);
}

int64_t JobRecord::first_update() const {
  const bool is_stored = header()->version == kNewestVersion &&
                         !BALLAST_SABOTAGED("daemon.first_update_forgotten");
  return is_stored ? header()->updates : 0;
}

void JobRecord::SetFinished(Step step) {
  // release: what is published was written before.
  header()->finished.store(step.value(), std::memory_order_release);
}

Step JobRecord::finished() const {
  return Step(header()->finished.load(std::memory_order_acquire));
}

void JobRecord::SetLoaded(Step step) {
  header()->loaded.store(step.value(), std::memory_order_release);
}

Step JobRecord::loaded() const {
  return Step(header()->loaded.load(std::memory_order_acquire));
}

void JobRecord::SetClosed(LocalRank rank) {
  if (rank.value() < kMaxLocalRanks) header()->closed[rank.value()] = 1;
}

bool JobRecord::is_closed(LocalRank rank) const {
  return rank.value() < kMaxLocalRanks && header()->closed[rank.value()] != 0;
}

bool JobRecord::SetNotes(const v1::StepNotes& notes) {
  const std::string text = notes.SerializeAsString();
  if (!notes_slots_.has_value() || text.size() > notes_slots_->max_bytes()) {
    return false;
  }
  notes_slots_->Write(text);
  notes_ = notes;
  return true;
}

absl::Status JobRecord::Record(const v1::PeerFrame& outcome,
                               const membership::BudgetState& budget) {
  v1::KeptOutcome kept;
  *kept.mutable_outcome() = outcome;
  AddTo(budget, &kept);
  const std::string text = notes_slots_.has_value()
                               ? kept.SerializeAsString()
                               : outcome.SerializeAsString();
  if (text.size() > outcomes_.max_bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an outcome of ", text.size(), " bytes cannot be kept"));
  }
  if (BALLAST_SABOTAGED("daemon.outcome_not_recorded")) {
    return absl::OkStatus();
  }
  outcomes_.Write(text);
  last_ = outcome;
  budget_ = budget;
  BALLAST_FAILPOINT("daemon.outcome");
  return absl::OkStatus();
}

}  // namespace ballast::daemon
