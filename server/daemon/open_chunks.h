// The chunks that the last daemon was updating when it ended, put back.
#ifndef SERVER_DAEMON_OPEN_CHUNKS_H_
#define SERVER_DAEMON_OPEN_CHUNKS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"
#include "server/session/local_job.h"

namespace ballast::daemon {

// The undo log of `made_with` threads that the device adopts, after it has
// restored what was open in `state`. FailedPrecondition if this daemon has more
// threads; DataLoss (UndoLog).
absl::StatusOr<std::unique_ptr<optimizer::UndoLog>> RestoreOpenChunks(
    const session::LocalJob& job, device::Device* device, int made_with,
    int num_threads, optimizer::ShardState* state);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_OPEN_CHUNKS_H_
