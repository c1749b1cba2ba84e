// A snapshot as one plain safetensors file, streamed: memory for the headers
// and one slice of data.
//
// Threading: a pure function over file systems; it blocks.
#ifndef SERVER_SNAPSHOT_FILES_EXPORT_H_
#define SERVER_SNAPSHOT_FILES_EXPORT_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {

enum class ExportContent {
  // NAME: what the workers saw, in each tensor's dtype.
  kWeights,
  // weights:NAME, master:NAME, m:NAME, v:NAME, residual:NAME (the sum over
  // nodes): the logical state, the same bytes whatever nodes and workers it
  // was saved on.
  kState,
};

// Writes `out` (below its own root): to a temporary name, then a rename.
// AlreadyExists if there is one. Returns its size in bytes.
absl::StatusOr<uint64_t> ExportSnapshot(SnapshotReader& snapshot,
                                        ExportContent content,
                                        FileSystem& out_files,
                                        std::string_view out);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_EXPORT_H_
