// The memory of a HeldFiles and its files (held_files.h): bounded, and that of
// large files is kept for the next ones of the same size.
//
// Threading: thread-safe.
#ifndef SERVER_SNAPSHOT_FILES_HELD_MEMORY_H_
#define SERVER_SNAPSHOT_FILES_HELD_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/base/segment.h"

namespace ballast::snapshot {

// What a file of this size is counted as.
uint64_t HeldBytesOf(uint64_t size_bytes);

// Shared by them: files may outlive their file system.
class HeldMemory {
 public:
  explicit HeldMemory(uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  // Counts bytes. False: there is no room.
  bool Take(uint64_t size_bytes);
  void Give(uint64_t size_bytes);

  // At least this many zero bytes, counted; `path` is for the error.
  absl::StatusOr<base::Segment> Make(const std::string& path,
                                     uint64_t size_bytes);
  // No longer counted; anything may lie in it.
  void TakeBack(base::Segment segment);
  // Keeps nothing from now on.
  void Close();

  uint64_t used() const;
  uint64_t spare() const;  // bytes that nobody uses
  uint64_t capacity() const { return capacity_; }

 private:
  bool HasRoom(uint64_t size_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of what is kept, until so much more may be taken.
  std::vector<base::Segment> MakeRoom(uint64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  base::Segment FindSpare(uint64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t capacity_;
  mutable base::Mutex mutex_;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t spare_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<base::Segment> spare_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_HELD_MEMORY_H_
