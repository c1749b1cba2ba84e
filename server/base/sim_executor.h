// Virtual time for tests: one queue of events for any number of simulated
// processes, in an order that a seed decides. Two runs of the same program
// with the same seed execute the same events at the same times; trace_hash()
// says whether they did.
//
// SimExecutor is itself an executor and the clock of all; SimProcess is the
// executor of one simulated process, which can be killed or paused.
//
// Order: functions posted to one executor run in the order of posting, like
// on a control thread; between executors every post is delayed by a random
// 0 … max_jitter, timers too.
//
// Threading: everything on one thread.
#ifndef SERVER_BASE_SIM_EXECUTOR_H_
#define SERVER_BASE_SIM_EXECUTOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/random.h"

namespace ballast::base {

class SimExecutor final : public Executor, public Clock {
 public:
  struct Options {
    absl::Duration max_jitter = absl::Microseconds(20);
  };

  explicit SimExecutor(uint64_t seed);
  SimExecutor(uint64_t seed, const Options& options);

  absl::Time Now() const override { return now_; }

  void Post(absl::AnyInvocable<void() &&> fn) override;
  TimerId PostAfter(absl::Duration delay,
                    absl::AnyInvocable<void() &&> fn) override;
  void Cancel(TimerId timer) override;

  // Runs the next event; false if there is none (paused ones do not count).
  bool Step();
  // Until no event is left. False if `max_events` ran and some are left: a
  // loop, or a periodic timer.
  bool RunUntilIdle(uint64_t max_events = 100'000'000);
  // Events up to and including `time`; then it is `time`.
  void RunUntil(absl::Time time);
  void RunFor(absl::Duration duration) { RunUntil(now_ + duration); }

  // Of all executed events (process label, time) and notes, in order.
  uint64_t trace_hash() const { return trace_hash_; }
  // Mixes something observable (a frame, a commit) into the hash.
  void Note(std::string_view text);

  // For what the simulated world itself draws (faults, delays); seeded.
  Random& random() { return random_; }
  uint64_t num_events_run() const { return num_events_run_; }
  // Whose event runs, or ran last: a process's label, or "world".
  std::string_view running() const;

 private:
  friend class SimProcess;
  struct Lane {
    std::string label;
    absl::Time last_post;
    bool is_paused = false;
  };
  struct Event {
    uint64_t lane;
    absl::AnyInvocable<void() &&> fn;
  };
  using Key = std::pair<absl::Time, uint64_t>;  // (time, id): ids are unique

  uint64_t AddLane(std::string_view label);
  void RemoveLane(uint64_t lane);
  void PostTo(uint64_t lane, absl::AnyInvocable<void() &&> fn);
  TimerId PostAfterTo(uint64_t lane, absl::Duration delay,
                      absl::AnyInvocable<void() &&> fn);
  absl::Duration Jitter();
  void Mix(std::string_view label);
  absl::btree_map<Key, Event>::iterator NextRunnable();
  void RunEvent(absl::btree_map<Key, Event>::iterator next);

  const Options options_;
  SeededRandom random_;
  absl::Time now_;
  uint64_t next_id_ = 1;
  uint64_t trace_hash_ = 0xcbf29ce484222325;
  uint64_t num_events_run_ = 0;
  uint64_t running_lane_ = 0;
  absl::flat_hash_map<uint64_t, Lane> lanes_;
  absl::btree_map<Key, Event> events_;
  absl::flat_hash_map<TimerId, absl::Time> timer_times_;
};

// Destruction is SIGKILL: what it had posted never runs.
class SimProcess final : public Executor {
 public:
  // `world` outlives it.
  SimProcess(SimExecutor* world, std::string_view label);
  ~SimProcess() override;

  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  void Post(absl::AnyInvocable<void() &&> fn) override;
  TimerId PostAfter(absl::Duration delay,
                    absl::AnyInvocable<void() &&> fn) override;
  void Cancel(TimerId timer) override;

  // SIGSTOP and SIGCONT: while paused nothing of it runs; then all that is due.
  void Pause();
  void Resume();

 private:
  SimExecutor* const world_;
  const uint64_t lane_;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_SIM_EXECUTOR_H_
