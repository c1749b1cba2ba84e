// Why workers that a job waits for do nothing: of a process that is stopped
// (SIGSTOP, a debugger) no time will help, as it may with a slow one. Each is
// looked at when somebody asks for whom the job waits, and then at most once in
// kEvery: never on the path of a step.
//
// Threading: control thread only.
#ifndef SERVER_SESSION_PROCESS_WATCH_H_
#define SERVER_SESSION_PROCESS_WATCH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/ipc/process_state.h"
#include "server/session/local_job.h"
#include "server/session/session.h"

namespace ballast::session {

class ProcessWatch {
 public:
  static constexpr absl::Duration kEvery = absl::Seconds(1);

  // Of the worker in a slot; nullopt: nobody is in it. `now` never goes back.
  std::optional<ipc::ProcessState> StateOf(const LocalJob& job, LocalRank rank,
                                           absl::Time now);
  // Of the ranks that owe something those that are stopped, and what to do;
  // or that it cannot be told; empty: all of them run.
  std::string Describe(const LocalJob& job, absl::Time now);

 private:
  struct Look {
    Incarnation worker;
    absl::Time at;
    ipc::ProcessState state = ipc::ProcessState::kUnknown;
  };
  std::vector<std::optional<Look>> looks_;  // by local rank
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_PROCESS_WATCH_H_
