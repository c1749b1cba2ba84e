// How a snapshot ended, as a frame says it: from a peer, so cut to a size.
#ifndef SERVER_SNAPSHOT_SNAPSHOT_OUTCOME_H_
#define SERVER_SNAPSHOT_SNAPSHOT_OUTCOME_H_

#include <cstddef>

#include "absl/status/status.h"
#include "proto/peer.pb.h"

namespace ballast::snapshot {

inline constexpr size_t kMaxOutcomeTextBytes = 1000;

absl::Status ToStatus(const v1::SnapshotOutcome& outcome);
void FillOutcome(const absl::Status& status, v1::SnapshotOutcome* outcome);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SNAPSHOT_OUTCOME_H_
