#include "server/base/wall_clock.h"

#include "absl/time/clock.h"

namespace ballast::base {

absl::Time WallClock::Now() const { return absl::Now(); }

}  // namespace ballast::base
