// How long at least one of several things was under way:
//
//   a   |-----|            |---|
//   b      |-----|
//       |--------|  busy   |---|
//
// Threading: thread-compatible.
#ifndef SERVER_COLLECTIVE_BUSY_TIME_H_
#define SERVER_COLLECTIVE_BUSY_TIME_H_

#include "absl/time/time.h"
#include "server/base/clock.h"

namespace ballast::collective {

class BusyTime {
 public:
  // Null: no time passes.
  explicit BusyTime(const base::Clock* clock) : clock_(clock) {}

  void Begin() {
    if (num_open_++ == 0) since_ = Now();
  }
  void End() {
    if (--num_open_ == 0) total_ += Now() - since_;
  }
  // So far, what is under way included.
  absl::Duration total() const {
    return num_open_ > 0 ? total_ + (Now() - since_) : total_;
  }

 private:
  absl::Time Now() const {
    return clock_ != nullptr ? clock_->Now() : absl::UnixEpoch();
  }

  const base::Clock* const clock_;
  int num_open_ = 0;
  absl::Time since_;
  absl::Duration total_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUSY_TIME_H_
