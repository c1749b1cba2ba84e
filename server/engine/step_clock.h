// Where the time of a step went, on this node. The stages follow one another,
// so that all but `wait` add up to the step's seconds:
//
//   |--wait--|--collect--|--reduce--|--vote--|--update--|--publish--|
//   last     first       last       all      commit     all         all
//   step     push        push       reduced             updated     published
//
// Work of different buckets overlaps; a stage ends with its last bucket.
//
// Threading: thread-compatible.
#ifndef SERVER_ENGINE_STEP_CLOCK_H_
#define SERVER_ENGINE_STEP_CLOCK_H_

#include <array>
#include <optional>

#include "absl/time/time.h"
#include "server/engine/ports.h"

namespace ballast::engine {

class StepClock {
 public:
  explicit StepClock(absl::Time opened) : opened_(opened) {}

  // The step before is published: whoever waits from now on waits for workers.
  void OnOpened(absl::Time now) { opened_ = now; }
  void OnContribution(absl::Time now) {
    if (!first_push_.has_value()) first_push_ = now;
  }
  void OnCollected(absl::Time now) { collected_ = now; }
  void OnReduced(absl::Time now) { reduced_ = now; }
  void OnCommitted(absl::Time now) { committed_ = now; }
  void OnUpdated(absl::Time now) { updated_ = now; }
  void OnPublished(absl::Time now) { published_ = now; }

  absl::Time first_push() const { return first_push_.value_or(opened_); }

  // Of a published step.
  double seconds() const;
  std::array<double, kNumStages> stage_seconds() const;

 private:
  absl::Time opened_;
  std::optional<absl::Time> first_push_;
  absl::Time collected_;
  absl::Time reduced_;
  absl::Time committed_;
  absl::Time updated_;
  absl::Time published_;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_STEP_CLOCK_H_
