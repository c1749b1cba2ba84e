// The seam to files: what a snapshot needs of a file system, below one root.
// Real: posix_file_system.h. Simulated: memory_file_system.h, with full disks,
// torn writes and crashes.
//
// Paths are relative to the root, components separated by "/": InvalidArgument
// for an empty component, ".", ".." or one beyond 255 bytes. A symbolic link
// on the way is refused, so that no path leads out of the root (I27).
//
// Threading: a FileSystem is thread-safe, a File thread-compatible. All calls
// may block: never on the control thread.
// Errors name the path. ResourceExhausted: no space; PermissionDenied: not
// writable; NotFound; AlreadyExists; DataLoss: a file ends too early.
#ifndef SERVER_SNAPSHOT_FILES_FILE_SYSTEM_H_
#define SERVER_SNAPSHOT_FILES_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::snapshot {

class File {
 public:
  virtual ~File() = default;
  virtual absl::Status WriteAt(uint64_t offset,
                               std::span<const std::byte> bytes) = 0;
  // Fills `bytes`; DataLoss if the file ends before.
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual absl::StatusOr<uint64_t> Size() = 0;
  // Sets the size and asks for the space now rather than in the middle of it.
  virtual absl::Status Reserve(uint64_t size_bytes) = 0;
  // Returns once what was written survives a crash of the machine.
  virtual absl::Status Sync() = 0;
};

struct DirectoryEntry {
  std::string name;
  bool is_directory = false;
};

// More entries than this in one directory are refused: nothing of ours has as
// many.
inline constexpr size_t kMaxDirectoryEntries = 100'000;

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // What exists already is left as it is. "" is the root.
  virtual absl::Status MakeDirectories(std::string_view path) = 0;
  // A new file for reading and writing; AlreadyExists.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(
      std::string_view path) = 0;
  // For reading; InvalidArgument if it is not a regular file.
  virtual absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) = 0;
  // Sorted by name. NotFound if there is no such directory.
  virtual absl::StatusOr<std::vector<DirectoryEntry>> List(
      std::string_view path) = 0;
  // A file replaces a file; a directory needs its new name to be free.
  virtual absl::Status Rename(std::string_view from, std::string_view to) = 0;
  // A file, or a directory and all in it; OK if there is none.
  virtual absl::Status RemoveAll(std::string_view path) = 0;
  // The names in a directory survive a crash of the machine from here on.
  virtual absl::Status SyncDirectory(std::string_view path) = 0;
};

// The components of a path, checked. "" has none.
absl::StatusOr<std::vector<std::string>> SplitPath(std::string_view path);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_FILE_SYSTEM_H_
