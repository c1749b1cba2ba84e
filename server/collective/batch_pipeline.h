// One bucket on its way between nodes, batch by batch, as a resumable
// operation:
//
//   batch 0   before ─▶ exchange ─▶ after
//   batch 1     before ─▶ exchange ─▶ after        done: all of them
//   batch 2       before ─▶ exchange ─▶ …
//
// All tasks before the exchanges are submitted at once, batch by batch; a
// batch goes as soon as its own are done, and what it brought is worked on as
// soon as it is there. Nothing is throttled: the caller's windows hold all.
//
// A batch may take more rounds of tasks and an exchange before `after`.
//
// Threading: control thread only; tasks run in the pool. Nothing is allocated
// after the batches are added.
#ifndef SERVER_COLLECTIVE_BATCH_PIPELINE_H_
#define SERVER_COLLECTIVE_BATCH_PIPELINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/context.h"
#include "server/collective/published_chunks.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class BatchPipeline {
 public:
  // An error ends the operation: nothing that depends on it is done.
  using Run = absl::AnyInvocable<absl::Status(int thread)>;
  struct Work {
    Run run;
    // Whose published bits it reads or writes: if it finds them damaged
    // (DataLoss) or cannot make them (NotFound), the context's watch may put
    // that right first.
    std::optional<ChunkId> chunk = {};
    // Of another owner's chunk, once the exchange is done: the checksum that
    // its owner says it will have.
    absl::AnyInvocable<uint64_t() const> told = {};
  };
  // How often that may happen to one of them in a step.
  static constexpr int kMaxHeals = 3;
  struct Round {
    std::vector<Work> before = {};
    transport::ExchangeSpec spec = {};
  };
  struct BatchParts {
    std::vector<Work> before = {};
    transport::ExchangeSpec spec = {};
    uint64_t payload_bytes = 0;  // that its sends carry, by the formula
    std::vector<Round> more = {};
    std::vector<Work> after = {};
  };

  // `on_done` ends the operation, on the control thread, never from inside
  // Start; it may destroy the pipeline. A failed exchange or task goes to the
  // context's observer instead. The context outlives the pipeline.
  BatchPipeline(Context* context, absl::AnyInvocable<void()> on_done);
  ~BatchPipeline();

  // In order, before the first Start.
  absl::Status Add(BatchParts parts);
  // One node: nothing is exchanged.
  void AddLocal(std::vector<Work> tasks);

  // An error is reported here and not to the observer.
  absl::Status Start(Step step);
  // The transport lets go of the memory; tasks are the gate's business.
  void Cancel();

  // Of the posted or last step; for tasks too.
  Step step() const { return step_; }
  uint64_t payload_sent() const { return payload_sent_; }
  void ForEachExchange(
      absl::FunctionRef<void(const transport::Exchange& exchange)> fn) const;

 private:
  class Lane;  // of one batch

  void OnLaneDone();

  Context* const context_;
  absl::AnyInvocable<void()> on_done_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Step step_;
  size_t num_open_ = 0;
  uint64_t payload_sent_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BATCH_PIPELINE_H_
