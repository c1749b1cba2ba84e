#include "server/daemon/job_loading.h"

#include <utility>

namespace ballast::daemon {

void JobLoading::Start(const session::StoredJob& stored,
                       const snapshot::LoadTarget& target, Done done) {
  // Two threads, in turn.
  auto result = std::make_shared<absl::StatusOr<snapshot::LoadedState>>();
  io_.Run(
      [this, stored, target, result] {
        *result = snapshot::LoadState(*files_, stored.path, stored.checksum,
                                      target, &is_cancelled_);
      },
      [result, done = std::move(done)]() mutable {
        std::move(done)(std::move(*result));
      });
}

}  // namespace ballast::daemon
