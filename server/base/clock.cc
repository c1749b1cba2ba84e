#include "server/base/clock.h"

#include <ctime>

namespace ballast::base {

absl::Time MonotonicClock::Now() const {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace ballast::base
