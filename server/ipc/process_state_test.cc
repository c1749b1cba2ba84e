#include "server/ipc/process_state.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/unique_fd.h"
#include "server/ipc/pidfd.h"

namespace ballast::ipc {
namespace {

TEST(ProcessStateTest, ReadsTheStateAfterTheName) {
  for (const auto& [letter, state] : {std::pair('R', ProcessState::kRunning),
                                      std::pair('S', ProcessState::kRunning),
                                      std::pair('D', ProcessState::kRunning),
                                      std::pair('I', ProcessState::kRunning),
                                      std::pair('T', ProcessState::kStopped),
                                      std::pair('t', ProcessState::kStopped),
                                      std::pair('Z', ProcessState::kUnknown),
                                      std::pair('X', ProcessState::kUnknown)}) {
    for (const char* const name :
         {"python3", "", ") T (", ") S 1 2 3", "a b\n", "((("}) {
      const std::string stat =
          absl::StrCat("4711 (", name, ") ", std::string(1, letter), " 1 2 3");
      EXPECT_EQ(ParseProcessState(stat), state) << stat;
    }
  }
}

TEST(ProcessStateTest, TakesNothingElseForAState) {  // I26
  for (const char* const stat :
       {"", ")", ") ", ") T", ")T 1", "4711 (x) TT 1", "4711 (x", "T",
        "4711 (x)  T 1", "4711 (x)\nT\n1"}) {
    EXPECT_EQ(ParseProcessState(stat), ProcessState::kUnknown) << stat;
  }
}

// A child that is stopped and goes on at our word.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
    pidfd_ = base::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Child() {
    if (pid_ > 0) Kill();
  }
  // The kernel's word that it has happened.
  void Stop() {
    kill(pid_, SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void Continue() {
    kill(pid_, SIGCONT);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WCONTINUED), pid_);
    ASSERT_TRUE(WIFCONTINUED(status));
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_;
  base::UniqueFd pidfd_;
};

TEST(ProcessStateTest, KnowsWhetherAProcessIsStopped) {
  Child child;
  ASSERT_GT(child.pid(), 0);
  ASSERT_GE(child.pidfd(), 0);
  EXPECT_EQ(ReadProcessState(child.pidfd(), child.pid()),
            ProcessState::kRunning);
  child.Stop();
  EXPECT_EQ(ReadProcessState(child.pidfd(), child.pid()),
            ProcessState::kStopped);
  child.Continue();
  EXPECT_EQ(ReadProcessState(child.pidfd(), child.pid()),
            ProcessState::kRunning);
}

TEST(ProcessStateTest, SaysNothingOfAnotherProcess) {
  Child child;
  child.Stop();
  // A pid that is not visible, or somebody else's.
  for (const pid_t pid : {0, -1, getpid()}) {
    EXPECT_EQ(ReadProcessState(child.pidfd(), pid), ProcessState::kUnknown);
  }
  EXPECT_EQ(ReadProcessState(STDIN_FILENO, child.pid()),
            ProcessState::kUnknown);
  EXPECT_EQ(ReadProcessState(-1, child.pid()), ProcessState::kUnknown);
  const pid_t pid = child.pid();
  child.Kill();
  EXPECT_EQ(ReadProcessState(child.pidfd(), pid), ProcessState::kUnknown);
}

}  // namespace
}  // namespace ballast::ipc
