// A shared memory segment: a sealed memfd and its mapping.
//
// Created with MFD_CLOEXEC and MFD_ALLOW_SEALING; its pages are reserved
// before anyone maps it (so that a full /dev/shm or cgroup is an error here
// and never a SIGBUS later), zero, and its size is sealed (SHRINK | GROW |
// SEAL). FUTURE_WRITE is never set: it would forbid the next daemon to map it
// writable.
//
// Rights: the inode's mode is 0600. What a worker only reads, it gets as
// OpenReadOnly(); a worker of another uid cannot reopen that for writing, one
// of the same uid (or root) could: tenants need uids of their own.
//
// Threading: thread-compatible; the bytes are whatever the sharers agree on.
#ifndef SERVER_BASE_SEGMENT_H_
#define SERVER_BASE_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace ballast::base {

enum class Access { kReadOnly, kReadWrite };

class Segment {
 public:
  Segment() = default;  // empty: no fd, no bytes
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // A new segment of exactly `size_bytes` > 0 zero bytes, mapped read-write.
  // `name` shows in /proc/PID/maps and is nothing else. ResourceExhausted if
  // the memory is not there.
  static absl::StatusOr<Segment> Create(std::string_view name,
                                        uint64_t size_bytes);

  // The same, but its pages come when they are reserved or written, and go by
  // Discard: for more bytes than there is memory, few of them at a time.
  static absl::StatusOr<Segment> CreateSparse(std::string_view name,
                                              uint64_t size_bytes);

  // Maps a segment that another process created. `fd` comes from outside:
  // InvalidArgument unless it is a memfd of at least `size_bytes` (> 0) whose
  // size is sealed.
  static absl::StatusOr<Segment> Map(UniqueFd fd, uint64_t size_bytes,
                                     Access access);

  uint64_t size_bytes() const { return size_bytes_; }
  int fd() const { return fd_.get(); }
  Access access() const { return access_; }

  // Writing to a read-only mapping is a fault: see access().
  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }

  // From now on the bytes are a copy of this moment's, under the same
  // addresses: the sharers neither see nor change them. Empties fd().
  // ResourceExhausted if there is no memory for it; then some of the bytes
  // may still be shared.
  absl::Status MakePrivate();
  // The same until Share, which needs the fd.
  absl::Status Hold();

  // From now on what is written stays here, under the same addresses; what is
  // not written is still the sharers'. For a successor that computes again
  // what others may be reading. `Store` shows them a range of it, `Share`
  // ends either and shows what they have. Not after MakePrivate.
  absl::Status Shadow();
  absl::Status Store(uint64_t offset, uint64_t size_bytes);
  absl::Status Share();

  // Of a sparse segment: pages for a range, so that writing it is no fault
  // later (ResourceExhausted if there are none); and the memory of the whole
  // pages in a range given back: they read as zeros, in every process.
  absl::Status Reserve(uint64_t offset, uint64_t size_bytes);
  void Discard(uint64_t offset, uint64_t size_bytes);

  // The same memory under a new fd for another process.
  absl::StatusOr<UniqueFd> OpenReadOnly() const;
  absl::StatusOr<UniqueFd> Duplicate() const;

 private:
  Segment(UniqueFd fd, std::byte* data, uint64_t size_bytes, Access access);

  static absl::StatusOr<Segment> Make(std::string_view name,
                                      uint64_t size_bytes, bool is_sparse);

  absl::Status MapAgain(int flags);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  Access access_ = Access::kReadWrite;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_SEGMENT_H_
