// A file system in this daemon's memory: what replicas lie in, so that they are
// snapshots in every respect but the disk. Each file is one sealed memfd
// (base/segment.h), its pages reserved before they are written. When its last
// user lets go, the memory of a large file is kept for the next one of about
// its size, which finds zeros in it (I13): a set of replicas follows the other,
// and fresh pages are the dearest part of one. The rest goes back to the
// system, all of it with the HeldFiles (I28).
//
// Bounded: all files that are in use, and what is kept, have together at most
// `capacity_bytes`; ResourceExhausted beyond. Nothing survives the process.
//
// Threading: thread-safe; the bytes of a HeldFile are whatever its users agree
// on. Memory for a large file may take seconds: not on the control thread.
#ifndef SERVER_SNAPSHOT_FILES_HELD_FILES_H_
#define SERVER_SNAPSHOT_FILES_HELD_FILES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/base/mutex.h"
#include "server/base/segment.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/held_memory.h"

namespace ballast::snapshot {

// Shared by the names of a file and by whoever reads, writes or sends it.
class HeldFile {
 public:
  ~HeldFile();
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  std::span<std::byte> bytes() const {
    return segment_.bytes().first(size_bytes_);
  }
  uint64_t size_bytes() const { return size_bytes_; }
  // Of a sparse one: memory for a range, before it is written. Ranges do not
  // overlap.
  absl::Status Reserve(uint64_t offset, uint64_t size_bytes);
  // Gives back all that was reserved of a sparse one.
  void Clear();

 private:
  friend class HeldFiles;
  friend class HeldFileHandle;
  explicit HeldFile(std::shared_ptr<HeldMemory> memory)
      : memory_(std::move(memory)) {}
  absl::Status Resize(const std::string& path, uint64_t size_bytes);
  absl::Status MakeSparse(const std::string& path, uint64_t size_bytes);

  const std::shared_ptr<HeldMemory> memory_;
  base::Segment segment_;  // of which `size_bytes_` are the file's
  uint64_t size_bytes_ = 0;
  bool is_sparse_ = false;
  uint64_t reserved_ = 0;  // of a sparse one
};

class HeldFiles final : public FileSystem {
 public:
  // Of a node of a job's life.
  explicit HeldFiles(uint64_t capacity_bytes, NodeRank node = NodeRank(0),
                     int num_nodes = 1);
  ~HeldFiles() override;

  absl::Status MakeDirectories(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Create(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<DirectoryEntry>> List(
      std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status RemoveAll(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;

  // A new file of this size, for whoever fills its bytes. `is_sparse`: without
  // memory until parts are reserved.
  absl::StatusOr<std::shared_ptr<HeldFile>> CreateHeld(std::string_view path,
                                                       uint64_t size_bytes,
                                                       bool is_sparse = false);
  // Another name for a file, also of another HeldFiles.
  absl::Status Link(std::string_view path, std::shared_ptr<HeldFile> file);
  // Null: there is none.
  std::shared_ptr<HeldFile> Find(std::string_view path);

  // No more sets are to come: no memory is kept for them from now on.
  void Close();

  NodeRank node() const { return node_; }
  int num_nodes() const { return num_nodes_; }
  // The step that all nodes ended the life with; -1: none.
  int64_t last_step() const { return last_step_; }
  void set_last_step(int64_t step) { last_step_ = step; }

  uint64_t bytes_in_use() const { return memory_->used(); }
  uint64_t spare_bytes() const { return memory_->spare(); }
  uint64_t capacity_bytes() const { return memory_->capacity(); }

 private:
  absl::Status Add(std::string_view path, std::shared_ptr<HeldFile> file);
  bool IsDirectory(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NodeRank node_;
  const int num_nodes_;
  std::atomic<int64_t> last_step_{-1};
  const std::shared_ptr<HeldMemory> memory_;
  base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<HeldFile>> files_
      ABSL_GUARDED_BY(mutex_);  // by path
  std::set<std::string> directories_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_HELD_FILES_H_
