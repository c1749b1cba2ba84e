#include "server/snapshot/files/held_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast::snapshot {
namespace {

// What is worth keeping, and in steps of what, so that the memory of one file
// serves the next although a cursor in it has grown.
constexpr uint64_t kLargeBytes = 4 << 20;
constexpr uint64_t kGrainBytes = 1 << 20;

}  // namespace

uint64_t HeldBytesOf(uint64_t size_bytes) {
  if (size_bytes < kLargeBytes || size_bytes > uint64_t{INT64_MAX}) {
    return size_bytes;
  }
  return (size_bytes + kGrainBytes - 1) / kGrainBytes * kGrainBytes;
}

bool HeldMemory::HasRoom(uint64_t size_bytes) const {
  return used_ <= capacity_ && size_bytes <= capacity_ - used_;
}

std::vector<base::Segment> HeldMemory::MakeRoom(uint64_t size_bytes) {
  std::vector<base::Segment> dropped;
  while (!spare_.empty() && spare_bytes_ > capacity_ - used_ - size_bytes) {
    dropped.push_back(std::move(spare_.back()));
    spare_.pop_back();
    spare_bytes_ -= dropped.back().size_bytes();
  }
  return dropped;
}

bool HeldMemory::Take(uint64_t size_bytes) {
  std::vector<base::Segment> dropped;  // back with the system without the lock
  base::MutexLock lock(&mutex_);
  if (!HasRoom(size_bytes)) return false;
  dropped = MakeRoom(size_bytes);
  used_ += size_bytes;
  return true;
}

void HeldMemory::Give(uint64_t size_bytes) {
  base::MutexLock lock(&mutex_);
  used_ -= size_bytes;
}

base::Segment HeldMemory::FindSpare(uint64_t size_bytes) {
  const auto it =
      std::ranges::find(spare_, size_bytes, &base::Segment::size_bytes);
  if (it == spare_.end()) return {};
  base::Segment found = std::move(*it);
  spare_.erase(it);
  spare_bytes_ -= size_bytes;
  return found;
}

absl::StatusOr<base::Segment> HeldMemory::Make(const std::string& path,
                                               uint64_t size_bytes) {
  const uint64_t needed = HeldBytesOf(size_bytes);
  base::Segment found;
  std::vector<base::Segment> dropped;
  {
    base::MutexLock lock(&mutex_);
    if (!HasRoom(needed)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " of ", size_bytes, " bytes: ", used_, " of ",
                       capacity_, " bytes for replicas are in use"));
    }
    found = FindSpare(needed);
    dropped = MakeRoom(needed);
    used_ += needed;
  }
  dropped.clear();
  if (found.size_bytes() > 0) {
    std::memset(found.bytes().data(), 0, found.size_bytes());
    return found;
  }
  absl::StatusOr<base::Segment> made = base::Segment::Create("replica", needed);
  if (!made.ok()) Give(needed);
  return made;
}

void HeldMemory::TakeBack(base::Segment segment) {
  std::vector<base::Segment> dropped;
  base::MutexLock lock(&mutex_);
  used_ -= segment.size_bytes();
  if (is_closed_ || segment.size_bytes() < kLargeBytes) {
    dropped.push_back(std::move(segment));
    return;
  }
  spare_bytes_ += segment.size_bytes();
  spare_.push_back(std::move(segment));
}

void HeldMemory::Close() {
  std::vector<base::Segment> dropped;
  base::MutexLock lock(&mutex_);
  is_closed_ = true;
  spare_bytes_ = 0;
  dropped.swap(spare_);
}

uint64_t HeldMemory::used() const {
  base::MutexLock lock(&mutex_);
  return used_;
}

uint64_t HeldMemory::spare() const {
  base::MutexLock lock(&mutex_);
  return spare_bytes_;
}

}  // namespace ballast::snapshot
