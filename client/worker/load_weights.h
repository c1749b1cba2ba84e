// Replaces the weights of a running job: a step of its own, which all ranks
// take together, commits the values that rank 0 gives (proto::Load).
//
//   auto result = LoadWeights(*worker, {.values = values});  // on each rank
//
// The step has a number as any other, and its weights that version: all nodes
// show them, or, if it is aborted, the old ones. Frozen tensors stay. On every
// rank the gradients are zero afterwards.
//
// Threading: as Worker, of which it is a call.
// Errors: those of Worker::Step; the call may be repeated likewise, after
// DeadlineExceeded and Cancelled without looking at `values` again.
// InvalidArgument: a value that does not fit its tensor. FailedPrecondition:
// a frozen tensor would change, gradients of the step were pushed already,
// weights are not resident, or this rank's former worker gave another step.
#ifndef CLIENT_WORKER_LOAD_WEIGHTS_H_
#define CLIENT_WORKER_LOAD_WEIGHTS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker/worker.h"

namespace ballast::worker {

struct LoadRequest {
  // One per tensor, of its size; an empty one: the tensor stays as it is. Of
  // rank 0; what other ranks give is not looked at and may be missing.
  std::span<const std::span<const std::byte>> values = {};
  bool resets_state = false;  // moments zero; else they stay
  // Nothing: the rank's committed cursor stays.
  std::optional<std::string_view> cursor = std::nullopt;
  absl::Duration timeout = absl::Minutes(10);
};

absl::StatusOr<StepResult> LoadWeights(Worker& worker,
                                       const LoadRequest& request);

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_LOAD_WEIGHTS_H_
