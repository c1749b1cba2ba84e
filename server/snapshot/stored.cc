#include "server/snapshot/stored.h"

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {

absl::StatusOr<std::optional<Stored>> FindStored(
    FileSystem& files, const std::string& job, const std::string& load,
    const JobIdentity& identity, std::span<const layout::TensorSpec> tensors) {
  // Of one that is not there, or not mounted, all would seem to be new.
  if (const absl::Status root = files.List("").status(); !root.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "snapshots.directory cannot be read, so that what is stored of job ",
        base::Quoted(job), " is not known: ", std::string(root.message()),
        "; mend that, or open it with resume=\"never\" to begin anew"));
  }
  Stored stored;
  if (load.empty()) {
    ASSIGN_OR_RETURN(const std::optional<CatalogEntry> newest,
                     FindNewest(files, job));
    if (!newest.has_value()) return std::nullopt;
    stored.path = newest->path();
  } else {
    ASSIGN_OR_RETURN(stored.path, ResolvePath(job, load));
    stored.path = PlaceOf(files, stored.path);
  }
  const absl::StatusOr<Manifest> manifest =
      ReadManifest(files, stored.path, &stored.checksum);
  if (absl::IsNotFound(manifest.status())) {
    return absl::NotFoundError(absl::StrCat(
        "there is no snapshot ", base::Quoted(stored.path),
        " in this daemon's snapshots.directory: see `ballastctl checkpoint "
        "list`"));
  }
  RETURN_IF_ERROR(manifest.status());
  // By its name, which the directory has, it goes on; by a path, from any.
  if (load.empty() && manifest->job != job) {
    return absl::FailedPreconditionError(absl::StrCat(
        "snapshot ", base::Quoted(stored.path), " is of job ",
        base::Quoted(manifest->job), ", not of ", base::Quoted(job),
        ": move it back, load it by its path, or open the session with "
        "resume=\"never\""));
  }
  RETURN_IF_ERROR(CheckFits(*manifest, stored.path, identity, tensors));
  stored.step = manifest->step;
  return stored;
}

}  // namespace ballast::snapshot
