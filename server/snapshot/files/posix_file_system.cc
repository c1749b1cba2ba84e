#include "server/snapshot/files/posix_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::snapshot {
namespace {

using base::ErrnoStatus;
using base::UniqueFd;

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMaxDepth = 16;
// The disk begins with so many bytes while the next ones are written.
constexpr uint64_t kWriteBackBytes = 1 << 20;

class PosixFile final : public File {
 public:
  PosixFile(UniqueFd fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status WriteAt(uint64_t offset,
                       std::span<const std::byte> bytes) override {
    const uint64_t first = offset;
    while (!bytes.empty()) {
      const ssize_t done = pwrite(fd_.get(), bytes.data(), bytes.size(),
                                  static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return ErrnoStatus(errno, Doing("cannot write "));
      if (done == 0) return ErrnoStatus(ENOSPC, Doing("cannot write "));
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += static_cast<uint64_t>(done);
    }
    // A hint: whether all is on the disk, Sync says.
    if (offset - first >= kWriteBackBytes) {
      std::ignore = sync_file_range(fd_.get(), static_cast<off_t>(first),
                                    static_cast<off_t>(offset - first),
                                    SYNC_FILE_RANGE_WRITE);
    }
    return absl::OkStatus();
  }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = pread(fd_.get(), bytes.data(), bytes.size(),
                                 static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return ErrnoStatus(errno, Doing("cannot read "));
      if (done == 0) {
        return absl::DataLossError(
            absl::StrCat(path_, " ends at byte ", offset, ", in the middle of ",
                         "what it says it holds: it is cut short"));
      }
      bytes = bytes.subspan(static_cast<size_t>(done));
      offset += static_cast<uint64_t>(done);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() override {
    struct stat info;
    if (fstat(fd_.get(), &info) != 0) {
      return ErrnoStatus(errno, Doing("cannot look at "));
    }
    return static_cast<uint64_t>(info.st_size);
  }

  absl::Status Reserve(uint64_t size_bytes) override {
    if (ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0) {
      return ErrnoStatus(errno, Doing("cannot write "));
    }
    if (size_bytes == 0) return absl::OkStatus();
    while (fallocate(fd_.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0) {
      if (errno == EINTR) continue;
      // Not every file system can: then the writes find out.
      if (errno == EOPNOTSUPP || errno == ENOSYS) break;
      return ErrnoStatus(errno, absl::StrCat("cannot write ", path_, " of ",
                                             size_bytes, " bytes"));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (fsync(fd_.get()) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, Doing("cannot make durable: "));
  }

 private:
  std::string Doing(const char* what) const {
    return absl::StrCat(what, path_);
  }

  const UniqueFd fd_;
  const std::string path_;
};

// ELOOP is what O_NOFOLLOW makes of a link.
absl::Status OpenError(int error, const std::string& path) {
  if (error == ELOOP || error == ENOTDIR) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is a link or not a directory: snapshots follow "
                     "none below their root"));
  }
  return ErrnoStatus(error, absl::StrCat("cannot open ", path));
}

absl::StatusOr<std::vector<DirectoryEntry>> ReadDirectory(
    UniqueFd fd, const std::string& path) {
  DIR* const stream = fdopendir(fd.get());
  if (stream == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("cannot list ", path));
  }
  std::ignore = fd.Release();  // the stream's
  std::vector<DirectoryEntry> entries;
  absl::Status status;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(stream);
    if (entry == nullptr) {
      if (errno != 0) {
        status = ErrnoStatus(errno, absl::StrCat("cannot list ", path));
      }
      break;
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (entries.size() == kMaxDirectoryEntries) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          path, " has more than ", kMaxDirectoryEntries, " entries"));
      break;
    }
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat info;
      is_directory = fstatat(dirfd(stream), entry->d_name, &info,
                             AT_SYMLINK_NOFOLLOW) == 0 &&
                     S_ISDIR(info.st_mode);
    }
    entries.push_back({name, is_directory});
  }
  closedir(stream);
  if (!status.ok()) return status;
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

absl::Status RemoveIn(int directory, const std::string& name,
                      const std::string& path, int depth) {
  if (unlinkat(directory, name.c_str(), 0) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  if (errno != EISDIR && errno != EPERM) {
    return ErrnoStatus(errno, absl::StrCat("cannot remove ", path));
  }
  if (depth == kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too deep"));
  }
  UniqueFd inner(openat(directory, name.c_str(), kDirectoryFlags));
  if (!inner) return OpenError(errno, path);
  UniqueFd listed(openat(inner.get(), ".", kDirectoryFlags));
  if (!listed) return OpenError(errno, path);
  ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> entries,
                   ReadDirectory(std::move(listed), path));
  for (const DirectoryEntry& entry : entries) {
    RETURN_IF_ERROR(RemoveIn(inner.get(), entry.name,
                             absl::StrCat(path, "/", entry.name), depth + 1));
  }
  if (unlinkat(directory, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("cannot remove ", path));
  }
  return absl::OkStatus();
}

}  // namespace

PosixFileSystem::PosixFileSystem(std::string root) : root_(std::move(root)) {}

std::string PosixFileSystem::Full(std::string_view path) const {
  return path.empty() ? root_ : absl::StrCat(root_, "/", std::string(path));
}

absl::StatusOr<UniqueFd> PosixFileSystem::OpenRoot() const {
  UniqueFd fd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("cannot open ", root_));
  return fd;
}

absl::StatusOr<UniqueFd> PosixFileSystem::OpenDirectory(
    std::string_view path) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  ASSIGN_OR_RETURN(UniqueFd fd, OpenRoot());
  for (const std::string& part : parts) {
    UniqueFd next(openat(fd.get(), part.c_str(), kDirectoryFlags));
    if (!next) return OpenError(errno, Full(path));
    fd = std::move(next);
  }
  return fd;
}

absl::StatusOr<PosixFileSystem::Place> PosixFileSystem::Locate(
    std::string_view path) const {
  const size_t slash = path.rfind('/');
  const std::string_view parent =
      slash == std::string_view::npos ? "" : path.substr(0, slash);
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  if (parts.empty()) {
    return absl::InvalidArgumentError("an empty path names no file");
  }
  ASSIGN_OR_RETURN(UniqueFd directory, OpenDirectory(parent));
  return Place{std::move(directory), parts.back()};
}

absl::Status PosixFileSystem::MakeDirectories(std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  ASSIGN_OR_RETURN(UniqueFd fd, OpenRoot());
  for (const std::string& part : parts) {
    if (mkdirat(fd.get(), part.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("cannot make ", Full(path)));
    }
    UniqueFd next(openat(fd.get(), part.c_str(), kDirectoryFlags));
    if (!next) return OpenError(errno, Full(path));
    fd = std::move(next);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> PosixFileSystem::Create(
    std::string_view path) {
  ASSIGN_OR_RETURN(const Place place, Locate(path));
  UniqueFd fd(openat(place.directory.get(), place.name.c_str(),
                     O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return ErrnoStatus(errno, absl::StrCat("cannot make ", Full(path)));
  return std::make_unique<PosixFile>(std::move(fd), Full(path));
}

absl::StatusOr<std::unique_ptr<File>> PosixFileSystem::Open(
    std::string_view path) {
  ASSIGN_OR_RETURN(const Place place, Locate(path));
  // O_NONBLOCK: a fifo in its place must not hold anyone up.
  UniqueFd fd(openat(place.directory.get(), place.name.c_str(),
                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return OpenError(errno, Full(path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Full(path), " is not a regular file"));
  }
  return std::make_unique<PosixFile>(std::move(fd), Full(path));
}

absl::StatusOr<std::vector<DirectoryEntry>> PosixFileSystem::List(
    std::string_view path) {
  ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(path));
  return ReadDirectory(std::move(fd), Full(path));
}

absl::Status PosixFileSystem::Rename(std::string_view from,
                                     std::string_view to) {
  ASSIGN_OR_RETURN(const Place old_place, Locate(from));
  ASSIGN_OR_RETURN(const Place new_place, Locate(to));
  if (renameat(old_place.directory.get(), old_place.name.c_str(),
               new_place.directory.get(), new_place.name.c_str()) != 0) {
    return ErrnoStatus(
        errno == ENOTEMPTY ? EEXIST : errno,
        absl::StrCat("cannot rename ", Full(from), " to ", Full(to)));
  }
  return absl::OkStatus();
}

absl::Status PosixFileSystem::RemoveAll(std::string_view path) {
  absl::StatusOr<Place> place = Locate(path);
  if (absl::IsNotFound(place.status())) return absl::OkStatus();
  RETURN_IF_ERROR(place.status());
  return RemoveIn(place->directory.get(), place->name, Full(path), 0);
}

absl::Status PosixFileSystem::SyncDirectory(std::string_view path) {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenDirectory(path));
  if (fsync(fd.get()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot make durable: ", Full(path)));
}

}  // namespace ballast::snapshot
