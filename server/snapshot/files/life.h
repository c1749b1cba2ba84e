// Which life of a job writes its snapshots: ROOT/JOB/.life holds the id of the
// one that began to save there last, and those before it. A life claims the
// directory with its first save; whoever had it before is refused from then on,
// so two lives that know nothing of each other never write over one another.
//
//   ballast life 1
//   id 0123456789abcdef         of the life: 16 hex digits
//   since 4                     version of its first snapshot here
//   before 0123456789abcde0 …   newest first, at most kMaxLivesBefore
//   checksum 89abcdef01234567   of all lines above
//
// A check and what it is for are two operations: a claim that comes between
// them is found by the next check. Of two lives that claim at once, the last
// one has it.
//
// Threading: pure functions over a file system; they block.
// Errors: of another life: FailedPrecondition, IsOtherLife. DataLoss: the file
// is damaged, so nobody may write. Of the file system: as it says.
#ifndef SERVER_SNAPSHOT_FILES_LIFE_H_
#define SERVER_SNAPSHOT_FILES_LIFE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/files/file_system.h"

namespace ballast::snapshot {

inline constexpr char kLifeName[] = ".life";
inline constexpr size_t kMaxLivesBefore = 16;

// One life of a job, on all its nodes and over restarts of their daemons.
enum class LifeId : uint64_t {};

struct LifeRecord {
  LifeId id{};
  int64_t since = 0;
  std::vector<LifeId> before;
};

std::string ToText(const LifeRecord& record);
absl::StatusOr<LifeRecord> ParseLife(std::string_view text);
// nullopt: no life has claimed the directory (or an older version's).
absl::StatusOr<std::optional<LifeRecord>> ReadLife(FileSystem& files,
                                                   std::string_view job);

// From here on `life` writes there, with the snapshot of version `since`; what
// it claimed before it has. A life that had claimed it, and has it no more, is
// refused: `has_claimed` says so of one that the record does not know any more.
absl::Status ClaimLife(FileSystem& files, std::string_view job, LifeId life,
                       int64_t since, bool has_claimed);
// No other life has claimed it since. OK too if the record is gone.
absl::Status CheckLife(FileSystem& files, std::string_view job, LifeId life);

// Whether an error says that another life writes there.
bool IsOtherLife(const absl::Status& status);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_LIFE_H_
