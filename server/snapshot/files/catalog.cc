#include "server/snapshot/files/catalog.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

constexpr char kTemporary[] = ".tmp-";
constexpr char kReplaced[] = ".old-";

std::string ReplacedPath(std::string_view job, std::string_view name) {
  return absl::StrCat(std::string(job), "/", kReplaced, std::string(name));
}

// Whose place `entry` of a job's directory lies aside from, if it does.
std::optional<std::string> ReplacedName(const DirectoryEntry& entry) {
  std::string_view name = entry.name;
  if (!entry.is_directory || !name.starts_with(kReplaced)) return std::nullopt;
  name.remove_prefix(sizeof(kReplaced) - 1);
  if (!CheckSnapshotName(name).ok()) return std::nullopt;
  return std::string(name);
}

bool Contains(const std::vector<DirectoryEntry>& entries,
              std::string_view name) {
  return std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.is_directory && entry.name == name;
  });
}

CatalogEntry Describe(FileSystem& files, const std::string& job,
                      const std::string& name, bool is_aside) {
  CatalogEntry entry;
  entry.job = job;
  entry.name = name;
  entry.is_aside = is_aside;
  absl::StatusOr<Manifest> manifest = ReadManifest(files, entry.path());
  if (absl::IsNotFound(manifest.status())) {
    entry.status = absl::DataLossError(
        absl::StrCat(entry.path(), " has no ", kManifestName));
    return entry;
  }
  entry.status = manifest.status();
  if (!manifest.ok()) return entry;
  entry.step = manifest->step;
  entry.num_nodes = manifest->num_nodes;
  entry.world_size = manifest->world_size();
  for (const FileInfo& file : manifest->files) {
    entry.size_bytes += file.size_bytes;
  }
  return entry;
}

// Before the manifest is written: all nodes' files must be seen from here.
absl::Status CheckFiles(FileSystem& files, const std::string& directory,
                        const Manifest& manifest) {
  for (int n = 0; n < manifest.num_nodes; ++n) {
    const FileInfo& info = manifest.files[n];
    auto file = files.Open(absl::StrCat(directory, "/", info.name));
    if (file.ok()) {
      ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
      if (size == info.size_bytes) continue;
    }
    return absl::DataLossError(absl::StrCat(
        "node ", n, " has written ", info.name, " of ", info.size_bytes,
        " bytes, and node 0 does not see it: snapshots.directory must be one "
        "directory that all nodes of a job share"));
  }
  return absl::OkStatus();
}

absl::Status WriteManifest(FileSystem& files, const std::string& directory,
                           const Manifest& manifest) {
  const std::string text = ToText(manifest);
  const std::string draft = absl::StrCat(directory, "/.", kManifestName);
  ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(draft));
  BALLAST_FAILPOINT("snapshot.manifest_made");
  RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(text))));
  RETURN_IF_ERROR(file->Sync());
  RETURN_IF_ERROR(
      files.Rename(draft, absl::StrCat(directory, "/", kManifestName)));
  return files.SyncDirectory(directory);
}

}  // namespace

std::string CatalogEntry::path() const {
  return is_aside ? ReplacedPath(job, name) : absl::StrCat(job, "/", name);
}

std::string StepName(int64_t step) {
  return absl::StrFormat("step-%08d", step);
}

bool IsStepName(std::string_view name) {
  return name.size() >= 13 && name.starts_with("step-") &&
         name.find_first_not_of("0123456789", 5) == std::string_view::npos;
}

absl::Status CheckSnapshotName(std::string_view name) {
  const absl::Status status = base::CheckJobName(name);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      "snapshot name ", base::Quoted(name),
      " must be 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or a "
      "digit, without \"..\": snapshots lie in the daemon's "
      "snapshots.directory, below their job"));
}

absl::StatusOr<std::string> ResolvePath(std::string_view job,
                                        std::string_view name_or_path) {
  const size_t slash = name_or_path.find('/');
  std::string_view name = name_or_path;
  if (slash != std::string_view::npos) {
    job = name_or_path.substr(0, slash);
    name = name_or_path.substr(slash + 1);
  }
  RETURN_IF_ERROR(CheckSnapshotName(job));
  RETURN_IF_ERROR(CheckSnapshotName(name));
  return absl::StrCat(std::string(job), "/", std::string(name));
}

absl::StatusOr<std::vector<CatalogEntry>> ListSnapshots(FileSystem& files,
                                                        std::string_view job) {
  std::vector<CatalogEntry> entries;
  auto names = files.List(job);
  if (absl::IsNotFound(names.status())) return entries;
  RETURN_IF_ERROR(names.status());
  for (const DirectoryEntry& entry : *names) {
    const std::optional<std::string> replaced = ReplacedName(entry);
    const bool is_aside = replaced.has_value() && !Contains(*names, *replaced);
    if (!is_aside &&
        (!entry.is_directory || !CheckSnapshotName(entry.name).ok())) {
      continue;
    }
    entries.push_back(Describe(files, std::string(job),
                               is_aside ? *replaced : entry.name, is_aside));
  }
  std::stable_sort(
      entries.begin(), entries.end(),
      [](const auto& a, const auto& b) { return a.step < b.step; });
  return entries;
}

absl::StatusOr<std::vector<CatalogEntry>> ListAllSnapshots(FileSystem& files) {
  std::vector<CatalogEntry> all;
  ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> jobs, files.List(""));
  for (const DirectoryEntry& job : jobs) {
    if (!job.is_directory || !base::CheckJobName(job.name).ok()) continue;
    ASSIGN_OR_RETURN(std::vector<CatalogEntry> some,
                     ListSnapshots(files, job.name));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  return all;
}

absl::StatusOr<std::optional<CatalogEntry>> FindNewest(FileSystem& files,
                                                       std::string_view job) {
  ASSIGN_OR_RETURN(std::vector<CatalogEntry> entries,
                   ListSnapshots(files, job));
  std::optional<CatalogEntry> newest;
  for (CatalogEntry& entry : entries) {
    if (!entry.status.ok()) {
      return absl::DataLossError(
          absl::StrCat(std::string(entry.status.message()), "; remove ",
                       entry.path(), ", or say which snapshot to load"));
    }
    if (newest.has_value() &&
        std::tuple(newest->step, IsStepName(newest->name)) >
            std::tuple(entry.step, IsStepName(entry.name))) {
      continue;
    }
    newest = std::move(entry);
  }
  return newest;
}

std::string TemporaryPath(std::string_view job, std::string_view id) {
  return absl::StrCat(std::string(job), "/", kTemporary, std::string(id));
}

std::string PlaceOf(FileSystem& files, const std::string& path) {
  const size_t slash = path.find('/');
  const std::string job = path.substr(0, slash);
  const std::string aside = ReplacedPath(job, path.substr(slash + 1));
  const auto names = files.List(job);
  const bool is_aside = names.ok() &&
                        !Contains(*names, path.substr(slash + 1)) &&
                        Contains(*names, aside.substr(slash + 1));
  return is_aside ? aside : path;
}

absl::Status RestoreReplaced(FileSystem& files, std::string_view job) {
  auto names = files.List(job);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  for (const DirectoryEntry& entry : *names) {
    const std::optional<std::string> name = ReplacedName(entry);
    if (!name.has_value()) continue;
    const std::string aside = ReplacedPath(job, *name);
    if (Contains(*names, *name)) {  // it came, perhaps in the last moment
      RETURN_IF_ERROR(files.SyncDirectory(job));
      RETURN_IF_ERROR(files.RemoveAll(aside));
      continue;
    }
    const absl::Status back =
        files.Rename(aside, absl::StrCat(std::string(job), "/", *name));
    // Another node of the job may have been quicker.
    if (absl::IsNotFound(back) || absl::IsAlreadyExists(back)) continue;
    RETURN_IF_ERROR(back);
    RETURN_IF_ERROR(files.SyncDirectory(job));
  }
  return absl::OkStatus();
}

absl::Status RemoveTemporary(FileSystem& files, std::string_view job,
                             std::string_view id) {
  RETURN_IF_ERROR(RestoreReplaced(files, job));
  auto names = files.List(job);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  const std::string kept = absl::StrCat(kTemporary, std::string(id));
  for (const DirectoryEntry& entry : *names) {
    if (!absl::StartsWith(entry.name, kTemporary) || entry.name == kept) {
      continue;
    }
    RETURN_IF_ERROR(
        files.RemoveAll(absl::StrCat(std::string(job), "/", entry.name)));
  }
  return absl::OkStatus();
}

absl::Status PublishSnapshot(FileSystem& files, const Manifest& manifest,
                             std::string_view name, LifeId life) {
  RETURN_IF_ERROR(CheckSnapshotName(name));
  // First: another life has removed the files.
  RETURN_IF_ERROR(CheckLife(files, manifest.job, life));
  const std::string directory = TemporaryPath(manifest.job, manifest.id);
  RETURN_IF_ERROR(CheckFiles(files, directory, manifest));
  RETURN_IF_ERROR(WriteManifest(files, directory, manifest));
  BALLAST_FAILPOINT("snapshot.before_rename");
  const std::string path = absl::StrCat(manifest.job, "/", std::string(name));
  const std::string aside = ReplacedPath(manifest.job, name);
  RETURN_IF_ERROR(CheckLife(files, manifest.job, life));
  absl::Status renamed = files.Rename(directory, path);
  if (absl::IsAlreadyExists(renamed)) {
    // Of an earlier one; its place is taken, so it is of no more use.
    RETURN_IF_ERROR(files.SyncDirectory(manifest.job));
    RETURN_IF_ERROR(files.RemoveAll(aside));
    RETURN_IF_ERROR(files.Rename(path, aside));
    BALLAST_FAILPOINT("snapshot.old_moved");
    renamed = files.SyncDirectory(manifest.job);
    if (renamed.ok()) renamed = files.Rename(directory, path);
    if (!renamed.ok()) {
      files.Rename(aside, path).IgnoreError();  // or by RestoreReplaced, later
    }
  }
  RETURN_IF_ERROR(renamed);
  BALLAST_FAILPOINT("snapshot.renamed");
  RETURN_IF_ERROR(files.SyncDirectory(manifest.job));
  RETURN_IF_ERROR(files.SyncDirectory(""));
  return files.RemoveAll(aside);
}

absl::Status PruneSnapshots(FileSystem& files, std::string_view job, int keep,
                            int64_t newest, LifeId life) {
  if (keep == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<CatalogEntry> entries,
                   ListSnapshots(files, job));
  std::erase_if(entries, [newest](const CatalogEntry& entry) {
    return !IsStepName(entry.name) || !entry.status.ok() || entry.step > newest;
  });
  for (size_t i = 0; i + keep < entries.size(); ++i) {
    RETURN_IF_ERROR(CheckLife(files, job, life));
    // What is half removed must not look like a snapshot.
    const std::string gone =
        TemporaryPath(job, absl::StrCat("gone-", entries[i].name));
    RETURN_IF_ERROR(files.RemoveAll(gone));
    RETURN_IF_ERROR(files.Rename(entries[i].path(), gone));
    BALLAST_FAILPOINT("snapshot.pruning");
    RETURN_IF_ERROR(files.SyncDirectory(job));
    RETURN_IF_ERROR(files.RemoveAll(gone));
  }
  return absl::OkStatus();
}

}  // namespace ballast::snapshot
