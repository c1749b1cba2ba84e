// The seam to time. A Clock never runs backwards; its zero is arbitrary, so
// values compare only with values of the same clock. Wall time is for logs.
//
// Threading: thread-safe.
#ifndef SERVER_BASE_CLOCK_H_
#define SERVER_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace ballast::base {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// CLOCK_MONOTONIC of this machine.
class MonotonicClock final : public Clock {
 public:
  absl::Time Now() const override;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_CLOCK_H_
