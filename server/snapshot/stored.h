// Which stored state a job goes on from.
//
// Threading: a pure function over a file system; it blocks.
#ifndef SERVER_SNAPSHOT_STORED_H_
#define SERVER_SNAPSHOT_STORED_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/layout/layout.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/loader.h"

namespace ballast::snapshot {

struct Stored {
  std::string path;
  uint64_t checksum = 0;  // of the manifest
  int64_t step = 0;
};

// `load`: "NAME" or "JOB/NAME", which must be there; empty: the newest of the
// job, nullopt if it has none. Errors of CheckFits if it is of another model.
absl::StatusOr<std::optional<Stored>> FindStored(
    FileSystem& files, const std::string& job, const std::string& load,
    const JobIdentity& identity, std::span<const layout::TensorSpec> tensors);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_STORED_H_
