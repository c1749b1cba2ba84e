// The time of day, for logs and metrics only: it may jump, so nothing is
// decided by it.
//
// Threading: thread-safe.
#ifndef SERVER_BASE_WALL_CLOCK_H_
#define SERVER_BASE_WALL_CLOCK_H_

#include "absl/time/time.h"
#include "server/base/clock.h"

namespace ballast::base {

class WallClock final : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_WALL_CLOCK_H_
