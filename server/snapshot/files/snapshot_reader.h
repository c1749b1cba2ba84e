// One snapshot, opened for reading: its manifest and the headers of its files
// are read, checked against one another, and found to hold every element of
// every array exactly once, before a byte of data is read (I27).
//
//   ASSIGN_OR_RETURN(auto snapshot, SnapshotReader::Open(files, "job/name"));
//   RETURN_IF_ERROR(snapshot->Read(wanted, sink));
//
// Memory: the headers, and one slice of data at a time.
//
// Threading: thread-compatible; blocks.
// Errors: DataLoss names the file and what is wrong with it.
#ifndef SERVER_SNAPSHOT_FILES_SNAPSHOT_READER_H_
#define SERVER_SNAPSHOT_FILES_SNAPSHOT_READER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/section_name.h"

namespace ballast::snapshot {

// A section of some file of the snapshot.
struct StoredSection {
  Kind kind = Kind::kMaster;
  int32_t tensor = 0;  // index into the manifest's; of a cursor: the rank
  int32_t node = 0;    // of a residual: whose
  int64_t begin = 0;   // elements of the tensor
  int64_t end = 0;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
  uint64_t checksum = 0;
};

// Metadata of a shard file.
inline constexpr char kFormatKey[] = "ballast_format";
inline constexpr char kShardFormat[] = "shard 1";
// XXH3-64 of each section, by place in the file, 16 hex digits each.
inline constexpr char kChecksumsKey[] = "checksums";

// The manifest alone: NotFound if the directory has none.
absl::StatusOr<Manifest> ReadManifest(FileSystem& files, std::string_view path,
                                      uint64_t* checksum = nullptr);

class SnapshotReader {
 public:
  static absl::StatusOr<std::unique_ptr<SnapshotReader>> Open(
      FileSystem& files, std::string_view path);

  const Manifest& manifest() const { return manifest_; }
  // Of the manifest's text: names this snapshot among all others.
  uint64_t checksum() const { return checksum_; }
  uint64_t data_bytes() const;
  // By node rank, as the manifest names the files; sections by offset.
  int num_shards() const { return static_cast<int>(shards_.size()); }
  std::span<const StoredSection> sections(int shard) const {
    return shards_[shard].sections;
  }

  using Wanted = absl::FunctionRef<bool(const StoredSection& section)>;
  // `offset`: of `bytes` in the section; slices come in order and are whole
  // elements. What was given is good once Read has returned OK.
  using Sink = absl::FunctionRef<absl::Status(const StoredSection& section,
                                              uint64_t offset,
                                              std::span<const std::byte>)>;
  // Sections in the order of the files. `cancelled`: looked at before each
  // slice; null: never.
  absl::Status Read(Wanted wanted, Sink sink,
                    const std::atomic<bool>* cancelled = nullptr);
  // The same of one file.
  absl::Status ReadShard(int shard, Wanted wanted, Sink sink,
                         const std::atomic<bool>* cancelled = nullptr);

 private:
  struct Shard {
    std::string path;
    std::unique_ptr<File> file;
    std::vector<StoredSection> sections;  // by offset
  };

  absl::Status OpenShard(FileSystem& files, const std::string& path,
                         const FileInfo& info);
  absl::Status CheckCoverage() const;
  absl::Status ReadSection(Shard& shard, const StoredSection& section,
                           Sink sink, const std::atomic<bool>* cancelled);

  Manifest manifest_;
  uint64_t checksum_ = 0;
  absl::flat_hash_map<std::string, int32_t> index_;  // of tensors, by name
  std::vector<Shard> shards_;
  std::vector<std::byte> slice_;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_SNAPSHOT_READER_H_
