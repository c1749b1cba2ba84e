// Finds the daemon: one handle socket and the gRPC channel that came with it.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_CONNECTION_H_
#define CLIENT_WORKER_CONNECTION_H_

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker/control_channel.h"
#include "client/worker/pauses.h"
#include "server/base/clock.h"
#include "server/base/random.h"
#include "server/ipc/handle_client.h"

namespace ballast::worker {

struct Connection {
  std::unique_ptr<ipc::HandleClient> handle;
  std::unique_ptr<ControlChannel> channel;

  // The daemon went away and the lease did not: a keeper holds it for the next
  // one, which gives this worker a new channel. Unavailable once nobody has the
  // lease; DeadlineExceeded if no daemon came; Cancelled.
  absl::Status Renew(absl::Duration timeout, const Interrupted& interrupted);
};

inline const absl::Status& ErrorOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& ErrorOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// `call(channel, timeout)` on the connection's channel: again on another one,
// where a daemon that went away is replaced in time. Only for calls that may be
// repeated.
template <typename Fn>
auto CallAgain(Connection& connection, absl::Duration timeout,
               const Interrupted& interrupted, const Fn& call)
    -> decltype(call(*connection.channel, timeout)) {
  const base::MonotonicClock clock;
  const absl::Time deadline = clock.Now() + timeout;
  for (;;) {
    const absl::Duration left =
        std::max(deadline - clock.Now(), absl::Milliseconds(1));
    auto result = call(*connection.channel, left);
    const bool is_interrupted = interrupted && interrupted();
    if (result.ok() || is_interrupted ||
        !connection.channel->IsBroken(ErrorOf(result)) ||
        !connection.Renew(deadline - clock.Now(), interrupted).ok()) {
      return result;
    }
  }
}

// InvalidArgument unless `address` is unix://, unix: or nothing before the
// absolute path of a socket (107 bytes at most).
absl::StatusOr<std::string> SocketPath(std::string_view address);

// Pauses (pauses.h) until a deadline.
class Backoff {
 public:
  Backoff(absl::Duration timeout, Interrupted interrupted)
      : deadline_(clock_.Now() + timeout),
        interrupted_(std::move(interrupted)) {}

  absl::Duration left() const { return deadline_ - clock_.Now(); }
  // At most until the deadline. Cancelled if `interrupted` says so.
  absl::Status Pause();

 private:
  const base::MonotonicClock clock_;
  base::SystemRandom random_;
  const absl::Time deadline_;
  const Interrupted interrupted_;
  Pauses pauses_{&random_};
};

// Whether the daemon refused for a moment only and says so.
bool IsPassing(const absl::Status& status);

// Tries until `timeout` while nobody answers or the refusal is a passing one;
// the error then says what was tried. Other refusals are returned at once.
absl::StatusOr<Connection> Connect(const std::string& address,
                                   std::string_view token,
                                   absl::Duration timeout,
                                   const Interrupted& interrupted);

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_CONNECTION_H_
