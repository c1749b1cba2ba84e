#include "server/daemon/open_chunks.h"

#include <cstddef>
#include <span>
#include <utility>

#include "server/base/status_macros.h"

namespace ballast::daemon {

using optimizer::UndoLog;

absl::StatusOr<std::unique_ptr<UndoLog>> RestoreOpenChunks(
    const layout::Layout& layout, NodeRank node, int num_threads,
    device::KeptDevice* device, optimizer::ShardState* state) {
  ASSIGN_OR_RETURN(std::unique_ptr<device::SharedBuffer> left,
                   device->AdoptLeft(UndoLog::kName));
  ASSIGN_OR_RETURN(
      std::unique_ptr<UndoLog> undo,
      UndoLog::Open(std::move(left), layout, node, state->num_moments()));
  RETURN_IF_ERROR(undo->RestoreOpenChunks(state).status());
  if (undo->num_threads() >= num_threads) return undo;
  ASSIGN_OR_RETURN(
      std::unique_ptr<device::SharedBuffer> wider,
      device->Replace(undo->BytesFor(num_threads), UndoLog::kName,
                      [&undo, num_threads](std::span<std::byte> memory) {
                        undo->CopyTo(memory, num_threads);
                      }));
  // Should the keeper not have got the other one before this process dies, the
  // job is lost: with this one, which no step writes to any more, a chunk would
  // be updated twice.
  undo->Retire();
  return UndoLog::Open(std::move(wider), layout, node, state->num_moments());
}

}  // namespace ballast::daemon
