#include "server/base/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"
#include "server/base/memory_info.h"
#include "server/base/status_macros.h"

namespace ballast::base {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr mode_t kMode = 0600;
constexpr uint64_t kPieceBytes = 64 << 20;  // whole pages
constexpr size_t kMaxNameBytes = 200;       // memfd_create allows 249

std::string ProcPath(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

absl::Status ReservePages(int fd, uint64_t offset, uint64_t size_bytes,
                          const std::string& name) {
  int result;
  do {
    result = fallocate(fd, 0, static_cast<off_t>(offset),
                       static_cast<off_t>(size_bytes));
  } while (result < 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  const absl::Status status =
      ErrnoStatus(errno, absl::StrCat("reserve ", size_bytes,
                                      " bytes of shared memory for ", name));
  // ENOMEM is the cgroup's or the system's limit, ENOSPC the tmpfs's.
  if (errno == ENOMEM || errno == ENOSPC) {
    return absl::ResourceExhaustedError(status.message());
  }
  return status;
}

absl::StatusOr<std::byte*> MapBytes(int fd, uint64_t size_bytes,
                                    Access access) {
  const int protection =
      access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const data = mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("map ", size_bytes, " bytes"));
  }
  return static_cast<std::byte*>(data);
}

// fallocate would go on until the kernel kills somebody.
absl::Status CheckRoom(uint64_t size_bytes) {
  const uint64_t available = AvailableMemoryBytes();
  if (size_bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(size_bytes, " bytes of shared memory were asked for, ",
                   available, " are available"));
}

absl::Status NoCopy(int error, uint64_t size_bytes) {
  const absl::Status status = ErrnoStatus(
      error,
      absl::StrCat("keep a copy of ", size_bytes, " bytes of shared memory"));
  return error == ENOMEM ? absl::ResourceExhaustedError(status.message())
                         : status;
}

absl::Status CheckSize(uint64_t size_bytes) {
  if (size_bytes > 0 && size_bytes <= uint64_t{INT64_MAX}) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a segment cannot have ", size_bytes, " bytes"));
}

}  // namespace

Segment::Segment(UniqueFd fd, std::byte* data, uint64_t size_bytes,
                 Access access)
    : fd_(std::move(fd)),
      data_(data),
      size_bytes_(size_bytes),
      access_(access) {}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(access_, other.access_);
  return *this;
}

absl::StatusOr<Segment> Segment::Create(std::string_view name,
                                        uint64_t size_bytes) {
  return Make(name, size_bytes, /*is_sparse=*/false);
}

absl::StatusOr<Segment> Segment::CreateSparse(std::string_view name,
                                              uint64_t size_bytes) {
  return Make(name, size_bytes, /*is_sparse=*/true);
}

absl::StatusOr<Segment> Segment::Make(std::string_view name,
                                      uint64_t size_bytes, bool is_sparse) {
  RETURN_IF_ERROR(CheckSize(size_bytes));
  if (!is_sparse) RETURN_IF_ERROR(CheckRoom(size_bytes));
  const std::string label =
      absl::StrCat("ballast:", std::string(name.substr(0, kMaxNameBytes)));
  UniqueFd fd(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return ErrnoStatus(errno, "memfd_create");
  if (fchmod(fd.get(), kMode) < 0) return ErrnoStatus(errno, "fchmod memfd");
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) < 0) {
    return ErrnoStatus(errno, absl::StrCat("size ", label));
  }
  if (!is_sparse) {
    RETURN_IF_ERROR(ReservePages(fd.get(), 0, size_bytes, label));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) < 0) {
    return ErrnoStatus(errno, absl::StrCat("seal ", label));
  }
  ASSIGN_OR_RETURN(std::byte* const data,
                   MapBytes(fd.get(), size_bytes, Access::kReadWrite));
  return Segment(std::move(fd), data, size_bytes, Access::kReadWrite);
}

absl::StatusOr<Segment> Segment::Map(UniqueFd fd, uint64_t size_bytes,
                                     Access access) {
  RETURN_IF_ERROR(CheckSize(size_bytes));
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("fd is not a memfd whose size is sealed");
  }
  struct stat info;
  if (fstat(fd.get(), &info) < 0) return ErrnoStatus(errno, "fstat memfd");
  if (static_cast<uint64_t>(info.st_size) < size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("segment has ", info.st_size,
                                                   " bytes, ", size_bytes,
                                                   " were announced"));
  }
  ASSIGN_OR_RETURN(std::byte* const data,
                   MapBytes(fd.get(), size_bytes, access));
  return Segment(std::move(fd), data, size_bytes, access);
}

absl::Status Segment::MakePrivate() {
  RETURN_IF_ERROR(Hold());
  fd_.Reset();
  return absl::OkStatus();
}

absl::Status Segment::Hold() {
  // In pieces, each moved into place at once: a reader never meets a hole.
  for (uint64_t done = 0; done < size_bytes_;) {
    const uint64_t piece = std::min(kPieceBytes, size_bytes_ - done);
    void* const copy = mmap(nullptr, piece, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return NoCopy(errno, size_bytes_);
    std::memcpy(copy, data_ + done, piece);
    const bool is_placed =
        (access_ == Access::kReadWrite ||
         mprotect(copy, piece, PROT_READ) == 0) &&
        mremap(copy, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED,
               data_ + done) != MAP_FAILED;
    if (!is_placed) {
      const int error = errno;
      munmap(copy, piece);
      return NoCopy(error, size_bytes_);
    }
    done += piece;
  }
  return absl::OkStatus();
}

absl::Status Segment::Shadow() { return MapAgain(MAP_PRIVATE); }

absl::Status Segment::Share() { return MapAgain(MAP_SHARED); }

// At once: no reader meets a hole.
absl::Status Segment::MapAgain(int flags) {
  const int protection =
      access_ == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  if (mmap(data_, size_bytes_, protection, flags | MAP_FIXED, fd_.get(), 0) ==
      MAP_FAILED) {
    return NoCopy(errno, size_bytes_);
  }
  return absl::OkStatus();
}

absl::Status Segment::Store(uint64_t offset, uint64_t size_bytes) {
  for (uint64_t done = 0; done < size_bytes;) {
    const ssize_t written = pwrite(fd_.get(), data_ + offset + done,
                                   size_bytes - done, offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "write to shared memory");
    done += written;
  }
  return absl::OkStatus();
}

absl::Status Segment::Reserve(uint64_t offset, uint64_t size_bytes) {
  RETURN_IF_ERROR(CheckRoom(size_bytes));
  return ReservePages(fd_.get(), offset, size_bytes, "a part of a segment");
}

void Segment::Discard(uint64_t offset, uint64_t size_bytes) {
  // Of what is no whole page nothing is given back, and other bytes of the
  // page stay as they are; the size is sealed, not the content: cannot fail
  // but for memory that the kernel needs itself, and then the pages stay.
  const uint64_t page = sysconf(_SC_PAGESIZE);
  const uint64_t begin = (offset + page - 1) / page * page;
  const uint64_t end = (offset + size_bytes) / page * page;
  if (begin >= end) return;
  while (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(begin),
                   static_cast<off_t>(end - begin)) < 0 &&
         errno == EINTR) {
  }
}

absl::StatusOr<UniqueFd> Segment::OpenReadOnly() const {
  UniqueFd fd(open(ProcPath(fd_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, "reopen segment read-only");
  return fd;
}

absl::StatusOr<UniqueFd> Segment::Duplicate() const {
  UniqueFd fd(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "duplicate segment fd");
  return fd;
}

}  // namespace ballast::base
