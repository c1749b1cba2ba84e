#include "server/snapshot/files/life.h"

#include <algorithm>
#include <memory>
#include <span>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {
namespace {

constexpr char kFormat[] = "ballast life 1";
constexpr char kChecksum[] = "checksum ";
constexpr char kOtherLife[] = "ballast.snapshot.other_life";
// Longer than any that is written.
constexpr uint64_t kMaxLifeBytes = 1024;

std::string LifePath(std::string_view job) {
  return absl::StrCat(std::string(job), "/", kLifeName);
}

std::string Hex(LifeId id) { return ToHex16(static_cast<uint64_t>(id)); }

absl::Status Bad(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat(what, ", not the \"", kFormat, "\" that was written"));
}

bool ParseId(std::string_view text, LifeId* id) {
  uint64_t value = 0;
  if (!FromHex16(text, &value)) return false;
  *id = LifeId(value);
  return true;
}

// The rest of a line that begins with `key`.
bool TakeLine(absl::string_view* text, absl::string_view key,
              absl::string_view* value) {
  const size_t end = text->find('\n');
  if (end == absl::string_view::npos || !absl::ConsumePrefix(text, key)) {
    return false;
  }
  *value = text->substr(0, end - key.size());
  text->remove_prefix(end - key.size() + 1);
  return true;
}

absl::Status OtherLife(std::string_view job, const LifeRecord& record) {
  const std::string path = LifePath(job);
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "another life of the job writes here (since step ", record.since,
      "): stop one of the two, or start one of them with another "
      "snapshots.directory; once the other has ended, remove ",
      path,
      " in the "
      "snapshots.directory, and this one saves there again"));
  status.SetPayload(kOtherLife, absl::Cord(Hex(record.id)));
  return status;
}

// Which life it is cannot be told: nobody may write.
absl::Status Unknown(std::string_view job, const absl::Status& why) {
  return absl::Status(
      why.code(),
      absl::StrCat("which life of the job writes here is not known: ",
                   std::string(why.message()), "; if no other does, remove ",
                   LifePath(job), " in the snapshots.directory"));
}

absl::Status WriteLife(FileSystem& files, std::string_view job,
                       const LifeRecord& record) {
  const std::string text = ToText(record);
  // A crash leaves what the next snapshot removes (RemoveTemporary).
  const std::string draft =
      absl::StrCat(std::string(job), "/.tmp-life-", Hex(record.id));
  RETURN_IF_ERROR(files.MakeDirectories(job));
  RETURN_IF_ERROR(files.RemoveAll(draft));
  absl::StatusOr<std::unique_ptr<File>> file = files.Create(draft);
  absl::Status written = file.status();
  if (written.ok()) {
    written = (*file)->WriteAt(0, std::as_bytes(std::span(text)));
  }
  if (written.ok()) written = (*file)->Sync();
  if (written.ok()) written = files.Rename(draft, LifePath(job));
  if (!written.ok()) {
    files.RemoveAll(draft).IgnoreError();
    if (!absl::IsResourceExhausted(written)) return written;
    return absl::ResourceExhaustedError(absl::StrCat(
        std::string(written.message()), "; if no other life of the job runs, ",
        std::string(job), "/.tmp-* can be removed"));
  }
  BALLAST_FAILPOINT("snapshot.life_claimed");
  RETURN_IF_ERROR(files.SyncDirectory(job));
  return files.SyncDirectory("");
}

bool IsKnown(const LifeRecord& record, LifeId life) {
  return std::ranges::find(record.before, life) != record.before.end();
}

}  // namespace

std::string ToText(const LifeRecord& record) {
  std::string text = absl::StrCat(kFormat, "\nid ", Hex(record.id), "\nsince ",
                                  record.since, "\nbefore");
  for (const LifeId id : record.before) absl::StrAppend(&text, " ", Hex(id));
  text += "\n";
  return absl::StrCat(text, kChecksum, ToHex16(Checksum(text)), "\n");
}

absl::StatusOr<LifeRecord> ParseLife(std::string_view text) {
  if (text.size() > kMaxLifeBytes) {
    return Bad(absl::StrCat("it has ", text.size(), " bytes"));
  }
  const size_t sum = text.rfind(kChecksum);
  uint64_t checksum = 0;
  if (sum == std::string_view::npos || text.back() != '\n' ||
      !FromHex16(text.substr(sum + sizeof(kChecksum) - 1,
                             text.size() - sum - sizeof(kChecksum)),
                 &checksum) ||
      checksum != Checksum(text.substr(0, sum))) {
    return Bad("its checksum is wrong");
  }
  absl::string_view rest(text.data(), sum);
  absl::string_view value;
  LifeRecord record;
  if (!TakeLine(&rest, kFormat, &value) || !value.empty()) {
    return Bad(absl::StrCat("it begins with ",
                            base::Quoted(text.substr(0, text.find('\n')))));
  }
  const bool is_read = TakeLine(&rest, "id ", &value) &&
                       ParseId({value.data(), value.size()}, &record.id) &&
                       TakeLine(&rest, "since ", &value) &&
                       absl::SimpleAtoi(value, &record.since) &&
                       record.since >= 0 && TakeLine(&rest, "before", &value) &&
                       rest.empty();
  if (!is_read) return Bad("its lines are others");
  for (const absl::string_view id :
       absl::StrSplit(value, ' ', absl::SkipEmpty())) {
    LifeId before{};
    if (!ParseId({id.data(), id.size()}, &before) ||
        record.before.size() == kMaxLivesBefore) {
      return Bad("its lives before are others");
    }
    record.before.push_back(before);
  }
  return record;
}

absl::StatusOr<std::optional<LifeRecord>> ReadLife(FileSystem& files,
                                                   std::string_view job) {
  const std::string path = LifePath(job);
  const auto file = files.Open(path);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  RETURN_IF_ERROR(file.status());
  ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
  // One byte more than there may be, at most.
  std::string text(std::min(size, kMaxLifeBytes + 1), '\0');
  RETURN_IF_ERROR((*file)->ReadAt(0, std::as_writable_bytes(std::span(text))));
  absl::StatusOr<LifeRecord> record = ParseLife(text);
  if (record.ok()) return *std::move(record);
  return absl::Status(record.status().code(),
                      absl::StrCat(path, " is damaged: ",
                                   std::string(record.status().message())));
}

absl::Status ClaimLife(FileSystem& files, std::string_view job, LifeId life,
                       int64_t since, bool has_claimed) {
  if (BALLAST_SABOTAGED("snapshot.life_unchecked")) return absl::OkStatus();
  const auto found = ReadLife(files, job);
  if (!found.ok()) return Unknown(job, found.status());
  LifeRecord record{.id = life, .since = since, .before = {}};
  if (found->has_value()) {
    const LifeRecord& now = **found;
    if (now.id == life) return absl::OkStatus();
    if (has_claimed || IsKnown(now, life)) return OtherLife(job, now);
    record.before = now.before;
    record.before.insert(record.before.begin(), now.id);
    if (record.before.size() > kMaxLivesBefore) {
      record.before.resize(kMaxLivesBefore);
    }
  }
  return WriteLife(files, job, record);
}

absl::Status CheckLife(FileSystem& files, std::string_view job, LifeId life) {
  if (BALLAST_SABOTAGED("snapshot.life_unchecked")) return absl::OkStatus();
  const auto found = ReadLife(files, job);
  if (!found.ok()) return Unknown(job, found.status());
  if (!found->has_value() || (*found)->id == life) return absl::OkStatus();
  return OtherLife(job, **found);
}

bool IsOtherLife(const absl::Status& status) {
  return status.GetPayload(kOtherLife).has_value();
}

}  // namespace ballast::snapshot
