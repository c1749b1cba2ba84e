// Tasks of one collective in the pool, counted, so that it can be stopped: a
// shut gate swallows completions, and says when the last task has left.
//
// Threading: control thread only.
#ifndef SERVER_COLLECTIVE_TASK_GATE_H_
#define SERVER_COLLECTIVE_TASK_GATE_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/base/compute_pool.h"

namespace ballast::collective {

class TaskGate;

class GatedTask : public base::Task {
 public:
  explicit GatedTask(TaskGate* gate) : gate_(gate) {}
  void Done() final;

 private:
  friend class TaskGate;
  // On the control thread after Run(); never once the gate is shut. May
  // destroy the gate and the task.
  virtual void OnDone() = 0;

  TaskGate* const gate_;
};

// Does nothing but report, so that no observer is called from inside a call.
class EmptyTask final : public GatedTask {
 public:
  EmptyTask(TaskGate* gate, absl::AnyInvocable<void()> on_done)
      : GatedTask(gate), on_done_(std::move(on_done)) {}
  void Run(int) override {}

 private:
  void OnDone() override { on_done_(); }

  absl::AnyInvocable<void()> on_done_;
};

class TaskGate {
 public:
  // The pool outlives the gate.
  explicit TaskGate(base::ComputePool* pool);

  void Submit(GatedTask* task);

  // No OnDone from now on.
  void Shut() { is_shut_ = true; }
  bool is_shut() const { return is_shut_; }

  // Runs `fn` once no task is in the pool, never from inside this call. After
  // Shut. `fn` may destroy the gate.
  void WhenIdle(absl::AnyInvocable<void() &&> fn);

 private:
  friend class GatedTask;
  void Leave(GatedTask* task);

  base::ComputePool* const pool_;
  int num_in_pool_ = 0;
  bool is_shut_ = false;
  std::vector<absl::AnyInvocable<void() &&>> when_idle_;
  std::unique_ptr<GatedTask> last_;  // makes WhenIdle asynchronous
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_TASK_GATE_H_
