#include "server/ipc/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/unique_fd.h"
#include "server/ipc/pidfd.h"

namespace ballast::ipc {

std::string_view Name(ProcessState state) {
  switch (state) {
    case ProcessState::kUnknown:
      return "unknown";
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kStopped:
      return "stopped";
  }
  return "unknown";
}

ProcessState ParseProcessState(std::string_view stat) {
  // "4711 (any )text) S 1 …"
  const size_t end = stat.rfind(')');
  if (end == std::string_view::npos || stat.size() < end + 4 ||
      stat[end + 1] != ' ' || stat[end + 3] != ' ') {
    return ProcessState::kUnknown;
  }
  switch (stat[end + 2]) {
    case 'T':
    case 't':
      return ProcessState::kStopped;
    case 'R':
    case 'S':
    case 'D':
    case 'I':
      return ProcessState::kRunning;
    default:  // a zombie, or what later kernels know
      return ProcessState::kUnknown;
  }
}

ProcessState ReadProcessState(int pidfd, pid_t pid) {
  if (pid <= 0 || PidOf(pidfd).value_or(0) != pid) {
    return ProcessState::kUnknown;
  }
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const base::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ProcessState::kUnknown;
  std::array<char, 1024> text;
  const ssize_t size = read(file.get(), text.data(), text.size());
  if (size <= 0 || PidOf(pidfd).value_or(0) != pid) {
    return ProcessState::kUnknown;
  }
  return ParseProcessState({text.data(), static_cast<size_t>(size)});
}

}  // namespace ballast::ipc
