// How long a job waits for nodes that have lost one another: pure.
//
//   Begin(why) ─▶ the nodes meet, over and over ─▶ End: all linked, and agreed
//                     └── deadline() ─▶ Expired: the job's end
//
// A further loss before End does not move the deadline, so that nodes which
// meet and part again and again (half a network is cut) do not wait for ever.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_RELINKING_H_
#define SERVER_DAEMON_RELINKING_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast::daemon {

class Relinking {
 public:
  // transport.relink_timeout; zero: a lost link ends the job.
  explicit Relinking(absl::Duration timeout) : timeout_(timeout) {}

  bool may_begin() const { return timeout_ > absl::ZeroDuration(); }
  bool is_active() const { return since_ != absl::InfiniteFuture(); }
  // True if it was not active before.
  bool Begin(const absl::Status& why, absl::Time now);
  void End() { since_ = absl::InfiniteFuture(); }

  absl::Duration timeout() const { return timeout_; }
  absl::Time deadline() const { return since_ + timeout_; }
  // The first loss, and how long ago; empty if not active.
  std::string Describe(absl::Time now) const;
  // What the job ends with at the deadline; `missing`: who has not come.
  absl::Status Expired(const std::string& missing) const;

 private:
  const absl::Duration timeout_;
  absl::Time since_ = absl::InfiniteFuture();
  absl::Status why_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_RELINKING_H_
