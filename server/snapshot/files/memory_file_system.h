// A file system in memory, for simulation and tests: a disk that can be full
// or fail, and a machine that can crash. What was not synced is lost by a
// crash, names by their directory, bytes by their file (I27, I28).
//
// Threading: thread-compatible (one simulated world).
#ifndef SERVER_SNAPSHOT_FILES_MEMORY_FILE_SYSTEM_H_
#define SERVER_SNAPSHOT_FILES_MEMORY_FILE_SYSTEM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/random.h"
#include "server/snapshot/files/file_system.h"

namespace ballast::snapshot {

class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  absl::Status MakeDirectories(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Create(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<DirectoryEntry>> List(
      std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status RemoveAll(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;

  // ---- Faults. ----
  void set_capacity(uint64_t size_bytes) { capacity_ = size_bytes; }
  void set_read_only(bool is_read_only) { is_read_only_ = is_read_only; }
  // After so many more changes (writes, names, syncs) so many fail.
  void FailAfter(int64_t changes, int64_t failures = INT64_MAX) {
    changes_left_ = changes;
    failures_left_ = failures;
  }
  // Of what was not synced, each name and each file's bytes are there or not,
  // and a file may hold the start of what was written only, or be torn: some of
  // its pages are there, in place of others is what was synced, or zeros.
  // tears: every file that was not synced is.
  void Crash(base::Random* random, bool tears = false);

  int64_t changes() const { return changes_; }
  int64_t failures() const { return failures_; }  // FailAfter's
  int64_t refusals() const { return refusals_; }  // for want of room
  int64_t torn() const { return torn_; }          // files, by crashes
  uint64_t bytes() const;                         // of all files

  // For tests: the bytes of a file, to look at or to damage; null: none.
  std::string* Contents(std::string_view path);

 private:
  friend class MemoryFile;
  struct Node;
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Place {
    Node* directory;
    std::string name;
  };

  absl::StatusOr<Node*> Directory(std::string_view path);
  absl::StatusOr<Place> Locate(std::string_view path);
  absl::Status Change(std::string_view path);
  static uint64_t Bytes(const Node& node);
  void CrashNode(Node* node, base::Random* random, bool tears);
  void Tear(Node* node, base::Random* random);

  std::shared_ptr<Node> root_;
  uint64_t capacity_ = UINT64_MAX;
  bool is_read_only_ = false;
  int64_t changes_ = 0;
  int64_t changes_left_ = INT64_MAX;
  int64_t failures_left_ = 0;
  int64_t failures_ = 0;
  int64_t refusals_ = 0;
  int64_t torn_ = 0;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_MEMORY_FILE_SYSTEM_H_
