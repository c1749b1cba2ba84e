// Starts a keeper that outlives this process, where nobody else does
// (keeper.program): detached from terminal, session and standard streams. It
// ends by itself (its --linger).
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_KEEPER_PROCESS_H_
#define SERVER_DAEMON_KEEPER_PROCESS_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast::daemon {

class KeeperProcess {
 public:
  // Keeps what a daemon leaves for `linger`, if no other one comes.
  KeeperProcess(std::string program, std::string socket, absl::Duration linger);

  // Starts one, unless the one that was started lives.
  absl::Status Start();

 private:
  const std::string program_;
  const std::string socket_;
  const absl::Duration linger_;
  pid_t pid_ = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_KEEPER_PROCESS_H_
