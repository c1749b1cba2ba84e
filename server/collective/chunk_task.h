// One chunk's work in the pool, made once and submitted every step.
//
// Threading: `run` on a pool thread, `on_done` on the control thread.
#ifndef SERVER_COLLECTIVE_CHUNK_TASK_H_
#define SERVER_COLLECTIVE_CHUNK_TASK_H_

#include <utility>

#include "absl/functional/any_invocable.h"
#include "server/collective/task_gate.h"

namespace ballast::collective {

class ChunkTask final : public GatedTask {
 public:
  ChunkTask(TaskGate* gate, absl::AnyInvocable<void(int thread)> run,
            absl::AnyInvocable<void()> on_done)
      : GatedTask(gate), run_(std::move(run)), on_done_(std::move(on_done)) {}

  void Run(int thread) override { run_(thread); }

 private:
  void OnDone() override { on_done_(); }

  absl::AnyInvocable<void(int thread)> run_;
  absl::AnyInvocable<void()> on_done_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_TASK_H_
