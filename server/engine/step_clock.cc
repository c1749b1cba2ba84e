#include "server/engine/step_clock.h"

#include <algorithm>

namespace ballast::engine {
namespace {

// Pushes may come while the step before is still being published: that time
// is the step's own, and nobody waited.
double Between(absl::Time from, absl::Time to) {
  return std::max(0.0, absl::ToDoubleSeconds(to - from));
}

}  // namespace

double StepClock::seconds() const { return Between(first_push(), published_); }

std::array<double, kNumStages> StepClock::stage_seconds() const {
  return {Between(first_push(), collected_), Between(collected_, reduced_),
          Between(reduced_, committed_),     Between(committed_, updated_),
          Between(updated_, published_),     Between(opened_, first_push())};
}

}  // namespace ballast::engine
