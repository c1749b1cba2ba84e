#include "server/ipc/pidfd.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::ipc {
namespace {

constexpr int kExited = -1;

}  // namespace

// The "Pid:" line of its fdinfo (proc(5)).
absl::StatusOr<pid_t> PidOf(int fd) {
  const std::string path = absl::StrCat("/proc/self/fdinfo/", fd);
  base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return base::ErrnoStatus(errno, path);
  std::array<char, 1024> text;
  const ssize_t size = read(file.get(), text.data(), text.size());
  if (size < 0) return base::ErrnoStatus(errno, path);
  for (absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), size), '\n')) {
    pid_t pid;
    if (absl::ConsumePrefix(&line, "Pid:") && absl::SimpleAtoi(line, &pid)) {
      return pid;
    }
  }
  return absl::InvalidArgumentError("descriptor is not a pidfd");
}

absl::StatusOr<base::UniqueFd> OpenSelfPidfd() {
  base::UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!fd) return base::ErrnoStatus(errno, "pidfd_open");
  return fd;
}

absl::Status CheckPidfd(int fd, pid_t pid) {
  ASSIGN_OR_RETURN(const pid_t found, PidOf(fd));
  if (found == kExited) {
    return absl::InvalidArgumentError("pidfd is of a process that has exited");
  }
  if (found > 0 && pid > 0 && found != pid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pidfd is of process ", found, ", the socket is of process ", pid));
  }
  return absl::OkStatus();
}

}  // namespace ballast::ipc
