#include "server/snapshot/snapshot_outcome.h"

#include <string>

namespace ballast::snapshot {

absl::Status ToStatus(const v1::SnapshotOutcome& outcome) {
  return absl::Status(static_cast<absl::StatusCode>(outcome.code()),
                      outcome.text().substr(0, kMaxOutcomeTextBytes));
}

void FillOutcome(const absl::Status& status, v1::SnapshotOutcome* outcome) {
  outcome->set_code(static_cast<int>(status.code()));
  outcome->set_text(
      std::string(status.message()).substr(0, kMaxOutcomeTextBytes));
}

}  // namespace ballast::snapshot
