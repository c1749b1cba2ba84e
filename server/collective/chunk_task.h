// One chunk's work in the pool, made once and submitted every step.
//
// Threading: `run` on a pool thread, `on_done`, with what it returned, on the
// control thread.
#ifndef SERVER_COLLECTIVE_CHUNK_TASK_H_
#define SERVER_COLLECTIVE_CHUNK_TASK_H_

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/collective/task_gate.h"

namespace ballast::collective {

class ChunkTask final : public GatedTask {
 public:
  ChunkTask(TaskGate* gate, absl::AnyInvocable<absl::Status(int thread)> run,
            absl::AnyInvocable<void(const absl::Status& status)> on_done)
      : GatedTask(gate), run_(std::move(run)), on_done_(std::move(on_done)) {}

  void Run(int thread) override { status_ = run_(thread); }

 private:
  void OnDone() override { on_done_(status_); }

  absl::AnyInvocable<absl::Status(int thread)> run_;
  absl::AnyInvocable<void(const absl::Status& status)> on_done_;
  absl::Status status_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_TASK_H_
