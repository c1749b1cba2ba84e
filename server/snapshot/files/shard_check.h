// One shard file of a snapshot, checked for itself: every byte is one that was
// written. Whether it fits the other files is a SnapshotReader's question.
//
// Threading: pure functions over an open file; they block.
#ifndef SERVER_SNAPSHOT_FILES_SHARD_CHECK_H_
#define SERVER_SNAPSHOT_FILES_SHARD_CHECK_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {

// Size and header are those of `info`. DataLoss says what is not.
absl::StatusOr<Header> CheckShardHeader(File& file, const FileInfo& info);

// The header and the checksum of every section. `cancelled`: looked at now and
// then; null: never.
absl::Status CheckShard(File& file, const FileInfo& info,
                        const std::atomic<bool>* cancelled);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_SHARD_CHECK_H_
