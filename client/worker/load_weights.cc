#include "client/worker/load_weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

absl::Status CheckValue(Worker& worker, int tensor,
                        std::span<const std::byte> value) {
  const std::span<const std::byte> now = worker.params(tensor);
  if (value.empty()) return absl::OkStatus();
  const std::string name = base::Quoted(worker.tensor(tensor).name());
  if (value.size() != now.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the new value of tensor ", name, " has ", value.size(),
                     " bytes, its shape and dtype need ", now.size()));
  }
  if (worker.tensor(tensor).frozen() && !std::ranges::equal(value, now)) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", name,
                     " is frozen and its new value another one: it cannot "
                     "change while the job runs; close the job and open it "
                     "with these values"));
  }
  return absl::OkStatus();
}

// Rank 0's go in place of its gradients; those of the others count for
// nothing, and zeros are cheap to encode.
absl::Status HandOver(Worker& worker, const LoadRequest& request) {
  const bool gives = worker.rank() == 0;
  if (gives &&
      static_cast<int>(request.values.size()) != worker.num_tensors()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank 0 gave ", request.values.size(), " values for ",
                     worker.num_tensors(), " tensors"));
  }
  for (int i = 0; gives && i < worker.num_tensors(); ++i) {
    RETURN_IF_ERROR(CheckValue(worker, i, request.values[i]));
  }
  for (int i = 0; i < worker.num_tensors(); ++i) {
    const std::span<std::byte> grads = worker.grads(i);
    if (grads.empty()) continue;
    if (!gives) {
      std::ranges::fill(grads, std::byte{});
      continue;
    }
    const std::span<const std::byte> value =
        request.values[i].empty() ? worker.params(i) : request.values[i];
    std::memmove(grads.data(), value.data(), grads.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepResult> LoadWeights(Worker& worker,
                                       const LoadRequest& request) {
  if (worker.gathers_weights()) {
    return absl::FailedPreconditionError(
        "weights that are not resident (secondary_partition=none) cannot be "
        "loaded into a running job: give them as initial values");
  }
  if (!worker.is_handed_over() && !worker.is_step_given()) {
    if (worker.any_pushed()) {
      return absl::FailedPreconditionError(
          absl::StrCat("gradients of step ", worker.open_step(),
                       " were pushed already: finish it, then load weights"));
    }
    RETURN_IF_ERROR(HandOver(worker, request));
  }
  const std::string cursor(request.cursor.value_or(worker.cursor()));
  ASSIGN_OR_RETURN(
      StepResult result,
      worker.Step({.cursor = cursor,
                   .timeout = request.timeout,
                   .load = request.resets_state ? proto::Load::kResetState
                                                : proto::Load::kKeepState}));
  for (int i = 0; i < worker.num_tensors(); ++i) {
    std::ranges::fill(worker.grads(i), std::byte{});
  }
  if (!result.loaded) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", result.step,
        ", which this rank's former worker gave, was an ordinary one: call it "
        "again to load weights in step ",
        result.step + 1));
  }
  return result;
}

}  // namespace ballast::worker
