#include "server/ipc/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::ipc {
namespace {

constexpr int kBacklog = 128;
constexpr mode_t kLockMode = 0644;

std::string LockPath(const std::string& path) { return path + ".lock"; }

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path ", path, " has ", path.size(),
                     " bytes; use 1 to ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status MakeDirectory(const std::string& path) {
  const std::filesystem::path parent =
      std::filesystem::path(path).parent_path();
  if (parent.empty()) return absl::OkStatus();
  std::error_code error;
  const bool is_new = std::filesystem::create_directories(parent, error);
  if (error) {
    return base::ErrnoStatus(
        error.value(), absl::StrCat("create directory ", parent.string()));
  }
  // Whatever the umask: workers must be able to come in.
  if (is_new && chmod(parent.c_str(), 0755) < 0) {
    return base::ErrnoStatus(errno, absl::StrCat("chmod ", parent.string()));
  }
  return absl::OkStatus();
}

std::string OwnerIn(int lock) {
  std::array<char, 32> text{};
  const ssize_t size = pread(lock, text.data(), text.size(), 0);
  const std::string_view read(text.data(), size > 0 ? size : 0);
  return std::string(read.substr(0, read.find('\n')));
}

bool IsAt(int fd, const std::string& path) {
  struct stat here, there;
  return fstat(fd, &here) == 0 && stat(path.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

absl::StatusOr<base::UniqueFd> TakeLock(const std::string& path) {
  const std::string lock_path = LockPath(path);
  while (true) {
    base::UniqueFd lock(open(lock_path.c_str(),
                             O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                             kLockMode));
    if (!lock)
      return base::ErrnoStatus(errno, absl::StrCat("open ", lock_path));
    if (flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
      if (errno != EWOULDBLOCK) {
        return base::ErrnoStatus(errno, absl::StrCat("lock ", lock_path));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "a running process (pid ", OwnerIn(lock.get()), ") serves ", path,
          "; stop it or choose another socket path"));
    }
    // Its last owner may have removed the file between open and lock.
    if (!IsAt(lock.get(), lock_path)) continue;
    const std::string owner = absl::StrCat(getpid(), "\n");
    if (ftruncate(lock.get(), 0) < 0 ||
        pwrite(lock.get(), owner.data(), owner.size(), 0) < 0) {
      return base::ErrnoStatus(errno, absl::StrCat("write ", lock_path));
    }
    return lock;
  }
}

absl::Status RemoveStale(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) < 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return base::ErrnoStatus(errno, absl::StrCat("stat ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists and is not a socket; move it away"));
  }
  if (unlink(path.c_str()) < 0) {
    return base::ErrnoStatus(errno, absl::StrCat("remove ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<base::UniqueFd> Bind(const std::string& path,
                                    const sockaddr_un& address, int type,
                                    mode_t mode) {
  base::UniqueFd listener(
      socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return base::ErrnoStatus(errno, "socket");
  // Before bind, so that the path never has a wider mode; after it again, as
  // the umask applies to bind.
  if (fchmod(listener.get(), mode) < 0) {
    return base::ErrnoStatus(errno, "fchmod socket");
  }
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) < 0) {
    return base::ErrnoStatus(errno, absl::StrCat("bind ", path));
  }
  if (chmod(path.c_str(), mode) < 0) {
    return base::ErrnoStatus(errno, absl::StrCat("chmod ", path));
  }
  return listener;
}

}  // namespace

absl::StatusOr<SocketPath> SocketPath::Listen(const std::string& path, int type,
                                              mode_t mode) {
  ASSIGN_OR_RETURN(SocketPath socket, Claim(path, type, mode));
  RETURN_IF_ERROR(socket.Open());
  return socket;
}

absl::StatusOr<SocketPath> SocketPath::Claim(const std::string& path, int type,
                                             mode_t mode) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  RETURN_IF_ERROR(MakeDirectory(path));
  ASSIGN_OR_RETURN(base::UniqueFd lock, TakeLock(path));
  RETURN_IF_ERROR(RemoveStale(path));
  ASSIGN_OR_RETURN(base::UniqueFd listener, Bind(path, address, type, mode));
  return SocketPath(path, std::move(lock), std::move(listener));
}

absl::Status SocketPath::Open() {
  if (listen(listener_.get(), kBacklog) < 0) {
    return base::ErrnoStatus(errno, absl::StrCat("listen on ", path_));
  }
  return absl::OkStatus();
}

SocketPath::SocketPath(std::string path, base::UniqueFd lock,
                       base::UniqueFd listener)
    : path_(std::move(path)),
      lock_(std::move(lock)),
      listener_(std::move(listener)) {}

SocketPath::~SocketPath() {
  if (!lock_) return;
  // While the lock is held nobody else can have made these.
  unlink(path_.c_str());
  unlink(LockPath(path_).c_str());
}

}  // namespace ballast::ipc
