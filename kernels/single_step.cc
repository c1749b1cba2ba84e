#include "kernels/single_step.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ballast::kernels {
namespace {

constexpr int kNotAllowed = 99;

// Follows a stopped child to its end.
std::string Follow(pid_t child, const std::function<std::string()>& check,
                   int64_t* instructions) {
  int status = 0;
  while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    std::string wrong = check();
    if (!wrong.empty()) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return wrong;
    }
    ++*instructions;
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) {
      kill(child, SIGKILL);
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return "";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return "the child ended with status " + std::to_string(status);
}

}  // namespace

std::string ForEachInstruction(const std::function<void()>& work,
                               const std::function<std::string()>& check,
                               int64_t* instructions) {
  *instructions = 0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return "";
#endif
  const pid_t child = fork();
  if (child < 0) return "no child";
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotAllowed);
    raise(SIGSTOP);
    work();
    _exit(0);
  }
  return Follow(child, check, instructions);
}

}  // namespace ballast::kernels
