// SIGTERM and SIGINT as events of the control thread.
//
// Threading: Block in main before any thread exists; the rest on the control
// thread.
#ifndef SERVER_DAEMON_SIGNALS_H_
#define SERVER_DAEMON_SIGNALS_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"

namespace ballast::daemon {

class Signals {
 public:
  // Blocks both in this thread and those it starts; ignores SIGPIPE.
  static void Block();

  // `on_signal` gets the number. `loop` outlives this.
  static absl::StatusOr<std::unique_ptr<Signals>> Create(
      base::EventLoop* loop, absl::AnyInvocable<void(int)> on_signal);
  ~Signals();

 private:
  Signals(base::EventLoop* loop, base::UniqueFd fd,
          absl::AnyInvocable<void(int)> on_signal);
  void OnReadable();

  base::EventLoop* const loop_;
  const base::UniqueFd fd_;
  absl::AnyInvocable<void(int)> on_signal_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_SIGNALS_H_
