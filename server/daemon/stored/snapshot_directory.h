// Whether snapshots.directory can be read. Where it cannot, the daemon serves
// all the same, jobs that a keeper holds among them: this looks again now and
// then, until it can. What is saved or loaded meanwhile fails by itself.
//
// Threading: control thread only; looks on a thread of `io`, the first time
// on its own. Lifetime: as IoQueue's.
#ifndef SERVER_DAEMON_STORED_SNAPSHOT_DIRECTORY_H_
#define SERVER_DAEMON_STORED_SNAPSHOT_DIRECTORY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/io_queue.h"

namespace ballast::daemon {

class SnapshotDirectory {
 public:
  struct Parts {
    snapshot::FileSystem* files = nullptr;
    base::ComputePool* io = nullptr;
    base::Executor* executor = nullptr;
    std::function<void(const std::string&)> log;   // it can, at last
    std::function<void(const std::string&)> warn;  // it cannot
  };

  // Looks.
  explicit SnapshotDirectory(Parts parts);
  ~SnapshotDirectory();

  // Why it cannot be read.
  const absl::Status& status() const { return status_; }

 private:
  void OnLooked(const absl::Status& status);
  void LookAgain();

  const Parts parts_;
  snapshot::IoQueue io_;
  absl::Status status_ = absl::OkStatus();
  base::TimerId timer_ = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_STORED_SNAPSHOT_DIRECTORY_H_
