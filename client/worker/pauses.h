// The pauses between tries to find a daemon: doubling from 50 ms to 2 s, each
// shortened by chance to between half of that and all of it, so that the
// workers of a daemon that went away do not come back in step.
//
// Threading: thread-compatible. Borrows `random`.
#ifndef CLIENT_WORKER_PAUSES_H_
#define CLIENT_WORKER_PAUSES_H_

#include <algorithm>

#include "absl/time/time.h"
#include "server/base/random.h"

namespace ballast::worker {

inline constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
inline constexpr absl::Duration kLongestPause = absl::Seconds(2);

class Pauses {
 public:
  explicit Pauses(base::Random* random) : random_(random) {}

  absl::Duration Next() {
    const auto chance = static_cast<double>(random_->Below(1024)) / 1024;
    const absl::Duration pause = longest_ * (0.5 + 0.5 * chance);
    longest_ = std::min(2 * longest_, kLongestPause);
    return pause;
  }

 private:
  base::Random* const random_;
  absl::Duration longest_ = kFirstPause;  // of the next one
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_PAUSES_H_
