// Whether the process of a worker can go on, as the kernel says.
//
// Threading: pure, or a few short reads of /proc: any thread.
#ifndef SERVER_IPC_PROCESS_STATE_H_
#define SERVER_IPC_PROCESS_STATE_H_

#include <sys/types.h>

#include <string_view>

namespace ballast::ipc {

enum class ProcessState {
  kUnknown,  // not visible here, or just gone
  kRunning,  // or ready to run, or it waits for something
  kStopped,  // by a signal (SIGSTOP, SIGTSTP) or by a debugger
};
std::string_view Name(ProcessState state);

// From the text of /proc/PID/stat (proc(5)). The name of the program, which
// comes before the state, may be anything: the last ")" ends it.
ProcessState ParseProcessState(std::string_view stat);

// Of the process of `pidfd`, whose socket is of process `pid`. kUnknown if they
// are not the same, or it lives in a pid namespace that this process does not
// see. `pidfd` is looked at before and after, so that another process that got
// the pid meanwhile is not taken for it.
ProcessState ReadProcessState(int pidfd, pid_t pid);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_PROCESS_STATE_H_
