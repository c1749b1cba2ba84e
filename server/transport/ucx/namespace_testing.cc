#include "server/transport/ucx/namespace_testing.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"

namespace ballast::transport {
namespace {

// `command` is split at spaces; its output goes to `*output` if there is one.
absl::Status RunCommand(const std::string& command,
                        std::string* output = nullptr) {
  std::vector<std::string> words = absl::StrSplit(command, ' ');
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::array<int, 2> pipe_fds;
  if (pipe2(pipe_fds.data(), O_CLOEXEC) < 0) {
    return base::ErrnoStatus(errno, "pipe2");
  }
  base::UniqueFd out(pipe_fds[0]);
  base::UniqueFd in(pipe_fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return base::ErrnoStatus(error, command);
  in = base::UniqueFd();
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t size; (size = read(out.get(), buffer.data(), buffer.size())) > 0;
       text.append(buffer.data(), size)) {
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (output != nullptr) *output = text;
  if (status == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(command, ": ", text));
}

// As `ip netns exec` does: UCX looks for devices in /sys/class/net, and an
// old mount of /sys shows those of the namespace that it was made in.
bool Enter(const std::string& network_namespace) {
  const base::UniqueFd fd(
      open(absl::StrCat("/run/netns/", network_namespace).c_str(),
           O_RDONLY | O_CLOEXEC));
  return fd.get() >= 0 && setns(fd.get(), CLONE_NEWNET) == 0 &&
         unshare(CLONE_NEWNS) == 0 &&
         mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0 &&
         (umount2("/sys", MNT_DETACH) == 0 || errno == EINVAL) &&
         mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TwoNamespaces>> TwoNamespaces::Create() {
  // The names carry the process id: two runs do not meet.
  std::unique_ptr<TwoNamespaces> both(new TwoNamespaces(getpid()));
  for (const int side : {0, 1}) {
    RETURN_IF_ERROR(
        RunCommand(absl::StrCat("ip netns add ", both->name(side))));
  }
  RETURN_IF_ERROR(RunCommand(absl::StrCat(
      "ip link add ", both->device(0), " netns ", both->name(0),
      " type veth peer name ", both->device(1), " netns ", both->name(1))));
  for (const int side : {0, 1}) {
    const std::string ip = absl::StrCat("ip -n ", both->name(side), " ");
    RETURN_IF_ERROR(RunCommand(absl::StrCat(
        ip, "addr add ", both->address(side), "/24 dev ", both->device(side))));
    RETURN_IF_ERROR(RunCommand(absl::StrCat(ip, "link set lo up")));
    RETURN_IF_ERROR(
        RunCommand(absl::StrCat(ip, "link set ", both->device(side), " up")));
  }
  for (const int side : {0, 1}) RETURN_IF_ERROR(both->AwaitRunning(side));
  return both;
}

// A device that is up runs only a moment later, when the kernel has seen the
// carrier; until then UCX does not count it.
absl::Status TwoNamespaces::AwaitRunning(int side) const {
  constexpr int kMaxTries = 500;
  std::string text;
  for (int i = 0; i < kMaxTries; ++i) {
    RETURN_IF_ERROR(RunCommand(
        absl::StrCat("ip -n ", name(side), " link show ", device(side)),
        &text));
    if (absl::StrContains(text, "state UP")) return absl::OkStatus();
    poll(nullptr, 0, 10);
  }
  return absl::DeadlineExceededError(text);
}

TwoNamespaces::~TwoNamespaces() {
  // The veth pair goes with its namespaces.
  for (const int side : {0, 1}) {
    RunCommand(absl::StrCat("ip netns del ", name(side))).IgnoreError();
  }
}

std::string TwoNamespaces::name(int side) const {
  return absl::StrCat("bl-ux-", id_, "-", side);
}
std::string TwoNamespaces::device(int side) const {
  return absl::StrCat("blux", id_ % 1000000, side == 0 ? "a" : "b");
}
std::string TwoNamespaces::address(int side) const {
  return absl::StrCat("10.77.0.", side + 1);
}

absl::StatusOr<uint64_t> TwoNamespaces::TransmittedBytes(int side) const {
  std::string text;
  RETURN_IF_ERROR(RunCommand(
      absl::StrCat("ip netns exec ", name(side), " cat /sys/class/net/",
                   device(side), "/statistics/tx_bytes"),
      &text));
  return std::stoull(text);
}

absl::Status TwoNamespaces::CutLink(int side) {
  return RunCommand(
      absl::StrCat("ip -n ", name(side), " link set ", device(side), " down"));
}

void ChildProcess::Channel::Send(const std::string& message) {
  [[maybe_unused]] const ssize_t sent =
      send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
}

std::optional<std::string> ChildProcess::Channel::Receive(
    absl::Duration timeout) {
  pollfd poll_fd = {fd_.get(), POLLIN, 0};
  if (poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) <=
      0) {
    return std::nullopt;
  }
  std::string message(64 << 10, '\0');
  const ssize_t size = recv(fd_.get(), message.data(), message.size(), 0);
  if (size <= 0) return std::nullopt;
  message.resize(size);
  return message;
}

std::unique_ptr<ChildProcess> ChildProcess::Start(
    const std::string& network_namespace, std::function<void(Channel*)> main) {
  std::array<int, 2> fds;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) < 0) {
    return nullptr;
  }
  base::UniqueFd ours(fds[0]);
  base::UniqueFd theirs(fds[1]);
  const pid_t pid = fork();
  if (pid < 0) return nullptr;
  if (pid > 0) {
    return std::unique_ptr<ChildProcess>(
        new ChildProcess(pid, std::move(ours)));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ours = base::UniqueFd();
  if (!network_namespace.empty() && !Enter(network_namespace)) _exit(3);
  Channel channel(std::move(theirs));
  main(&channel);
  std::cout.flush();
  _exit(0);
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int signal) { kill(pid_, signal); }

}  // namespace ballast::transport
