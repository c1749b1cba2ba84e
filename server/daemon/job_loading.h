// Reads the stored state that a job goes on from into its memory, off the
// control thread.
//
// Threading: control thread only. `done` is never called from inside Start.
// Lifetime: destroyed only when it is not busy, or when the pool runs nothing
// any more. Nothing of the job's memory is touched once it is not busy.
#ifndef SERVER_DAEMON_JOB_LOADING_H_
#define SERVER_DAEMON_JOB_LOADING_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/compute_pool.h"
#include "server/session/job_spec.h"
#include "server/session/local_job.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/loader.h"

namespace ballast::daemon {

class JobLoading {
 public:
  using Done =
      absl::AnyInvocable<void(absl::StatusOr<snapshot::LoadedState>) &&>;

  JobLoading(snapshot::FileSystem* files, base::ComputePool* io)
      : files_(files), io_(io) {}

  void Start(const session::StoredJob& stored,
             const snapshot::LoadTarget& target, Done done);
  // It ends soon, with an error.
  void Cancel() { is_cancelled_ = true; }
  bool is_busy() const { return !io_.is_idle(); }

 private:
  snapshot::FileSystem* const files_;
  snapshot::IoQueue io_;
  std::atomic<bool> is_cancelled_{false};
};

// The line that says where the job goes on, and what it lacks.
std::string DescribeLoaded(const session::LocalJob& job,
                           const std::string& source,
                           const snapshot::LoadedState& loaded,
                           bool has_residuals);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_LOADING_H_
