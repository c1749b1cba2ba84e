// The daemon's log: one event one line on stderr, lower case, key=value.
//
//   2026-01-31T12:00:00.123Z info  worker connected pid=4711
//
// Threading: thread-safe.
#ifndef SERVER_DAEMON_LOG_H_
#define SERVER_DAEMON_LOG_H_

#include <string>

namespace ballast::daemon {

// debug, info, warn or error.
void SetUpLog(const std::string& level);

void LogInfo(const std::string& event);
void LogWarn(const std::string& event);
void LogError(const std::string& event);  // a human should look

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_LOG_H_
