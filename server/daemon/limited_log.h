// Log lines that strangers can cause: at most so many in ten seconds, then one
// line with how many were left out.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_LIMITED_LOG_H_
#define SERVER_DAEMON_LIMITED_LOG_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "server/base/executor.h"

namespace ballast::daemon {

class LimitedLog {
 public:
  static constexpr int kLines = 10;
  static constexpr absl::Duration kWindow = absl::Seconds(10);

  // `what` names the lines in the count: "refused workers". Borrows
  // `executor`, which outlives this.
  LimitedLog(base::Executor* executor, std::string what,
             std::function<void(const std::string&)> log);
  ~LimitedLog();

  LimitedLog(const LimitedLog&) = delete;
  LimitedLog& operator=(const LimitedLog&) = delete;

  void Log(const std::string& event);

 private:
  void OnWindowEnd();

  base::Executor* const executor_;
  const std::string what_;
  const std::function<void(const std::string&)> log_;
  base::TimerId timer_ = 0;  // while a window is open
  int count_ = 0;            // of events in it
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_LIMITED_LOG_H_
