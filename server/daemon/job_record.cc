#include "server/daemon/job_record.h"

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

namespace ballast::daemon {
namespace {

constexpr uint64_t kMagic = 0x31424f4a'4c4c4142;  // BALLJOB1
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPage = proto::kPageSize;
// 256 param groups take 48 KiB, rank 0's cursor 64 KiB.
constexpr uint64_t kSlotBytes = 128 << 10;
constexpr uint64_t kSlotHeaderBytes = 24;
constexpr int kMaxLocalRanks = 1024;  // limits.max_workers_per_job

uint64_t Checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

uint64_t RoundToPage(uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
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
};

absl::StatusOr<std::unique_ptr<JobRecord>> JobRecord::Create(
    device::Device* device, const v1::KeptJob& job) {
  static_assert(sizeof(Header) <= kPage);
  const std::string text = job.SerializeAsString();
  ASSIGN_OR_RETURN(
      std::unique_ptr<device::SharedBuffer> buffer,
      device->AllocateShared(kPage + RoundToPage(text.size()) + 2 * kSlotBytes,
                             kRecordName));
  std::memcpy(buffer->bytes().data() + kPage, text.data(), text.size());
  auto record =
      std::unique_ptr<JobRecord>(new JobRecord(std::move(buffer), job));
  Header* const header = record->header();
  header->version = kVersion;
  header->job_bytes = text.size();
  header->job_checksum = Checksum(text);
  return record;
}

absl::StatusOr<std::unique_ptr<JobRecord>> JobRecord::Open(
    std::unique_ptr<device::SharedBuffer> buffer) {
  const std::span<std::byte> bytes = buffer->bytes();
  if (bytes.size() < kPage + 2 * kSlotBytes) {
    return absl::DataLossError(
        absl::StrCat("a job's record of ", bytes.size(), " bytes"));
  }
  const auto* const header = reinterpret_cast<const Header*>(bytes.data());
  const uint64_t magic = header->magic.load(std::memory_order_acquire);
  if (magic == 0) return absl::UnavailableError("the job did not run yet");
  if (magic != kMagic || header->version != kVersion) {
    return absl::DataLossError(absl::StrCat("a job's record of format ",
                                            header->version,
                                            "; this version knows ", kVersion));
  }
  const uint64_t room = bytes.size() - kPage - 2 * kSlotBytes;
  const uint64_t size = header->job_bytes;
  v1::KeptJob job;
  const bool is_whole =
      size <= room && RoundToPage(size) == room &&
      Checksum(TextOf(bytes.subspan(kPage, size))) == header->job_checksum &&
      job.ParseFromArray(bytes.data() + kPage, static_cast<int>(size));
  if (!is_whole) return absl::DataLossError("the job's record is damaged");
  auto record = std::unique_ptr<JobRecord>(
      new JobRecord(std::move(buffer), std::move(job)));
  for (int i = 0; i < 2; ++i) {
    uint64_t sequence = 0;
    auto outcome = record->ReadSlot(i, &sequence);
    if (!outcome.has_value() || sequence <= record->sequence_) continue;
    record->last_ = std::move(outcome);
    record->sequence_ = sequence;
  }
  return record;
}

JobRecord::JobRecord(std::unique_ptr<device::SharedBuffer> buffer,
                     v1::KeptJob job)
    : buffer_(std::move(buffer)), job_(std::move(job)) {}

JobRecord::Header* JobRecord::header() const {
  return reinterpret_cast<Header*>(buffer_->bytes().data());
}

std::span<std::byte> JobRecord::slot(int index) const {
  const std::span<std::byte> bytes = buffer_->bytes();
  return bytes.subspan(bytes.size() - (2 - index) * kSlotBytes, kSlotBytes);
}

std::optional<v1::PeerFrame> JobRecord::ReadSlot(int index,
                                                 uint64_t* sequence) const {
  const std::span<const std::byte> bytes = slot(index);
  uint64_t checksum = 0;
  uint64_t size = 0;
  std::memcpy(&checksum, bytes.data(), 8);
  std::memcpy(sequence, bytes.data() + 8, 8);
  std::memcpy(&size, bytes.data() + 16, 8);
  v1::PeerFrame outcome;
  if (*sequence == 0 || size > kSlotBytes - kSlotHeaderBytes ||
      Checksum(TextOf(bytes.subspan(8, size + 16))) != checksum ||
      !outcome.ParseFromArray(bytes.data() + kSlotHeaderBytes,
                              static_cast<int>(size))) {
    return std::nullopt;
  }
  return outcome;
}

void JobRecord::Begin(Step first) {
  header()->finished.store(first.value() - 1, std::memory_order_relaxed);
  header()->magic.store(kMagic, std::memory_order_release);
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

absl::Status JobRecord::Record(const v1::PeerFrame& outcome) {
  const std::string text = outcome.SerializeAsString();
  if (text.size() > kSlotBytes - kSlotHeaderBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an outcome of ", text.size(), " bytes cannot be kept"));
  }
  if (BALLAST_SABOTAGED("daemon.outcome_not_recorded")) {
    return absl::OkStatus();
  }
  const uint64_t sequence = sequence_ + 1;
  const uint64_t size = text.size();
  std::string bytes(16, '\0');
  std::memcpy(bytes.data(), &sequence, 8);
  std::memcpy(bytes.data() + 8, &size, 8);
  bytes += text;
  std::byte* const out = slot(sequence & 1).data();
  std::memcpy(out + 8, bytes.data(), bytes.size());
  BALLAST_FAILPOINT("daemon.outcome.written");
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(out))
      .store(Checksum(bytes), std::memory_order_release);
  sequence_ = sequence;
  last_ = outcome;
  BALLAST_FAILPOINT("daemon.outcome");
  return absl::OkStatus();
}

}  // namespace ballast::daemon
