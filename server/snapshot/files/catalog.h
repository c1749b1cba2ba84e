// The snapshots below a root: ROOT/JOB/NAME/, NAME is "step-00000123" unless a
// user chose one. What is being written or removed lies in ROOT/JOB/.tmp-ID/
// and becomes a snapshot by one rename, with everything in it durable: a crash
// at any instant leaves whole snapshots and, at worst, a .tmp- directory. One
// that is replaced by another of its name lies aside in ROOT/JOB/.old-NAME/
// until that one is there: if it never comes, it is the snapshot NAME still.
//
// Threading: pure functions over a file system; they block.
#ifndef SERVER_SNAPSHOT_FILES_CATALOG_H_
#define SERVER_SNAPSHOT_FILES_CATALOG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/life.h"
#include "server/snapshot/files/manifest.h"

namespace ballast::snapshot {

struct CatalogEntry {
  std::string job;
  std::string name;
  bool is_aside = false;  // see RestoreReplaced
  absl::Status status;    // of the manifest; files are not looked at
  int64_t step = 0;
  int num_nodes = 0;
  int world_size = 0;
  uint64_t size_bytes = 0;  // of its files

  std::string path() const;
};

std::string StepName(int64_t step);
bool IsStepName(std::string_view name);
// The rule of job names, so that no name is hidden or leads elsewhere.
absl::Status CheckSnapshotName(std::string_view name);
// "NAME" of `job`, or "JOB/NAME": the path below the root.
absl::StatusOr<std::string> ResolvePath(std::string_view job,
                                        std::string_view name_or_path);

// By step, then name. Empty if the job has no directory.
absl::StatusOr<std::vector<CatalogEntry>> ListSnapshots(FileSystem& files,
                                                        std::string_view job);
// Of all jobs.
absl::StatusOr<std::vector<CatalogEntry>> ListAllSnapshots(FileSystem& files);

// Of the largest step; of equal ones, the one that is named by its step.
// nullopt if there is none. DataLoss if a manifest is damaged: which state is
// the newest is then not known.
absl::StatusOr<std::optional<CatalogEntry>> FindNewest(FileSystem& files,
                                                       std::string_view job);

// Where "JOB/NAME" lies: there, or aside.
std::string PlaceOf(FileSystem& files, const std::string& path);
// Gives those their name again that lie aside because their writer died before
// it had put another one in their place. Not while the job is writing.
absl::Status RestoreReplaced(FileSystem& files, std::string_view job);

std::string TemporaryPath(std::string_view job, std::string_view id);
// Whatever an interrupted writer left, but that of `id`; after RestoreReplaced.
// Only of a life that has claimed the directory (life.h): what another one is
// writing goes too.
absl::Status RemoveTemporary(FileSystem& files, std::string_view job,
                             std::string_view id);
// The files of the manifest lie in TemporaryPath, durable: makes the snapshot
// JOB/name of them. Another one of this name is replaced. DataLoss if a file
// is not there with its size (the directory is not shared by all nodes).
// IsOtherLife: `life` has the directory no more; looked at directly before.
absl::Status PublishSnapshot(FileSystem& files, const Manifest& manifest,
                             std::string_view name, LifeId life);
// Of those that are named by their step, up to `newest`, removes all but the
// `keep` newest; others were asked for by name and stay, and later ones are of
// a life that `life` did not go on from. 0: keeps all. IsOtherLife.
absl::Status PruneSnapshots(FileSystem& files, std::string_view job, int keep,
                            int64_t newest, LifeId life);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_CATALOG_H_
