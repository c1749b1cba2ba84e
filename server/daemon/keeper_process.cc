#include "server/daemon/keeper_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"

namespace ballast::daemon {

KeeperProcess::KeeperProcess(std::string program, std::string socket,
                             absl::Duration linger)
    : program_(std::move(program)),
      socket_(std::move(socket)),
      linger_(linger) {}

absl::Status KeeperProcess::Start() {
  if (pid_ != 0 && waitpid(pid_, nullptr, WNOHANG) == 0) {
    return absl::OkStatus();
  }
  pid_ = 0;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int fd : {0, 1, 2}) {
    posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  }
  // The daemon blocks signals; of its keeper they must be heard.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  std::string socket_flag = "--socket";
  std::string socket = socket_;
  std::string linger_flag = "--linger";
  std::string linger = absl::StrCat(absl::ToDoubleSeconds(linger_));
  std::string program = program_;
  std::array<char*, 6> arguments = {program.data(), socket_flag.data(),
                                    socket.data(),  linger_flag.data(),
                                    linger.data(),  nullptr};
  std::array<char*, 1> environment = {nullptr};
  const int error = posix_spawn(&pid_, program_.c_str(), &files, &attributes,
                                arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error == 0) return absl::OkStatus();
  pid_ = 0;
  return base::ErrnoStatus(error, absl::StrCat("start ", program_));
}

}  // namespace ballast::daemon
