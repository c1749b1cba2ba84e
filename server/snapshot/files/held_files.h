// A file system in this daemon's memory: what replicas lie in, so that they are
// snapshots in every respect but the disk. Each file is one sealed memfd
// (base/segment.h), its pages reserved before they are written and back with
// the system, hence zeroed for whoever is next, when its last user lets go
// (I13, I28).
//
// Bounded: all files that are in use together have at most `capacity_bytes`;
// ResourceExhausted beyond. Nothing survives the process.
//
// Threading: thread-safe; the bytes of a HeldFile are whatever its users agree
// on.
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

namespace ballast::snapshot {

// Counts what is in use; shared by a HeldFiles and its files, which may outlive
// it.
class HeldBudget {
 public:
  explicit HeldBudget(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}
  // False: there is no room.
  bool Take(uint64_t size_bytes);
  void Give(uint64_t size_bytes) { used_.fetch_sub(size_bytes); }
  uint64_t used() const { return used_.load(); }
  uint64_t capacity() const { return capacity_; }

 private:
  const uint64_t capacity_;
  std::atomic<uint64_t> used_{0};
};

// Shared by the names of a file and by whoever reads, writes or sends it.
class HeldFile {
 public:
  ~HeldFile() { budget_->Give(charge_); }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  std::span<std::byte> bytes() const { return segment_.bytes(); }
  uint64_t size_bytes() const { return segment_.size_bytes(); }
  // Of a sparse one: memory for a range, before it is written. Ranges do not
  // overlap.
  absl::Status Reserve(uint64_t offset, uint64_t size_bytes);
  // Gives back all that was reserved of a sparse one.
  void Clear();

 private:
  friend class HeldFiles;
  friend class HeldFileHandle;
  explicit HeldFile(std::shared_ptr<HeldBudget> budget)
      : budget_(std::move(budget)) {}
  absl::Status Resize(const std::string& path, uint64_t size_bytes);
  absl::Status MakeSparse(const std::string& path, uint64_t size_bytes);

  const std::shared_ptr<HeldBudget> budget_;
  base::Segment segment_;
  uint64_t charge_ = 0;
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

  NodeRank node() const { return node_; }
  int num_nodes() const { return num_nodes_; }
  // The step that all nodes ended the life with; -1: none.
  int64_t last_step() const { return last_step_; }
  void set_last_step(int64_t step) { last_step_ = step; }

  uint64_t bytes_in_use() const { return budget_->used(); }
  uint64_t capacity_bytes() const { return budget_->capacity(); }

 private:
  absl::Status Add(std::string_view path, std::shared_ptr<HeldFile> file);
  bool IsDirectory(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const NodeRank node_;
  const int num_nodes_;
  std::atomic<int64_t> last_step_{-1};
  const std::shared_ptr<HeldBudget> budget_;
  base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<HeldFile>> files_
      ABSL_GUARDED_BY(mutex_);  // by path
  std::set<std::string> directories_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_HELD_FILES_H_
