// The chunks that the last daemon was updating when it ended, put back.
#ifndef SERVER_DAEMON_OPEN_CHUNKS_H_
#define SERVER_DAEMON_OPEN_CHUNKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/device/kept_device.h"
#include "server/layout/layout.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"

namespace ballast::daemon {

// The undo log that was left in `device`, after it has restored what was open
// in `state`; where this daemon has more threads than the last one, a larger
// one in its place. DataLoss (UndoLog); ResourceExhausted for the larger one.
absl::StatusOr<std::unique_ptr<optimizer::UndoLog>> RestoreOpenChunks(
    const layout::Layout& layout, NodeRank node, int num_threads,
    device::KeptDevice* device, optimizer::ShardState* state);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_OPEN_CHUNKS_H_
