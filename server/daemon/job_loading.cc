#include "server/daemon/job_loading.h"

#include <utility>

#include "absl/strings/str_cat.h"

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

std::string DescribeLoaded(const session::LocalJob& job,
                           const std::string& source,
                           const snapshot::LoadedState& loaded,
                           bool has_residuals) {
  const int world_size = job.layout().topology().world_size();
  return absl::StrCat(
      "job goes on job=", job.spec().name, " from=\"", source,
      "\" step=", loaded.step,
      loaded.stored_world_size == world_size
          ? ""
          : absl::StrCat(" cursors=none: stored of ", loaded.stored_world_size,
                         " ranks, not ", world_size),
      has_residuals && !loaded.has_residuals
          ? " residuals=none: error feedback starts anew"
          : "",
      !has_residuals && loaded.has_residuals
          ? " residuals=dropped: there is no error feedback now"
          : "");
}

}  // namespace ballast::daemon
