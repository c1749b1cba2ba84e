// The seam to the control thread: all state machines of a daemon run as
// functions posted here, one after the other. Real: EventLoop (epoll).
// Simulated: one queue in virtual time for many daemons.
#ifndef SERVER_BASE_EXECUTOR_H_
#define SERVER_BASE_EXECUTOR_H_

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace ballast::base {

using TimerId = uint64_t;  // 0 is never a valid timer

class Executor {
 public:
  virtual ~Executor() = default;

  // Runs `fn` on the control thread, after all that was posted before it.
  // Thread-safe. Functions still queued when the executor stops are dropped.
  virtual void Post(absl::AnyInvocable<void() &&> fn) = 0;

  // Runs `fn` once after `delay`. Control thread only.
  virtual TimerId PostAfter(absl::Duration delay,
                            absl::AnyInvocable<void() &&> fn) = 0;

  // Cancels a timer; one that ran or was cancelled is ignored. Control thread
  // only; after it returns the function will not run.
  virtual void Cancel(TimerId timer) = 0;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_EXECUTOR_H_
