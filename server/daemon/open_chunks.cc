#include "server/daemon/open_chunks.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::daemon {

absl::StatusOr<std::unique_ptr<optimizer::UndoLog>> RestoreOpenChunks(
    const session::LocalJob& job, device::Device* device, int made_with,
    int num_threads, optimizer::ShardState* state) {
  if (made_with < num_threads) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job was made with ", made_with,
        " compute threads, this daemon has ", num_threads,
        ": start it with compute.threads=", made_with, " or fewer"));
  }
  ASSIGN_OR_RETURN(auto undo,
                   optimizer::UndoLog::Create(device, job.layout(), job.node(),
                                              state->num_moments(), made_with));
  RETURN_IF_ERROR(undo->RestoreOpenChunks(state).status());
  return undo;
}

}  // namespace ballast::daemon
