#include "server/daemon/stored/snapshot_directory.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace ballast::daemon {
namespace {

constexpr absl::Duration kPause = absl::Seconds(5);

}  // namespace

SnapshotDirectory::SnapshotDirectory(Parts parts)
    : parts_(std::move(parts)), io_(parts_.io) {
  // Whether it can be written shows each snapshot anew.
  OnLooked(parts_.files->List("").status());
}

SnapshotDirectory::~SnapshotDirectory() { parts_.executor->Cancel(timer_); }

void SnapshotDirectory::OnLooked(const absl::Status& status) {
  const bool was_readable = status_.ok();
  status_ = status;
  if (status.ok()) {
    if (!was_readable) parts_.log("snapshots.directory can be read at last");
    return;
  }
  if (was_readable) {
    parts_.warn(absl::StrCat(
        "snapshots.directory cannot be read reason=\"",
        std::string(status.message()),
        "\": nothing is saved or loaded until it can; mend or mount it"));
  }
  timer_ = parts_.executor->PostAfter(kPause, [this] { LookAgain(); });
}

void SnapshotDirectory::LookAgain() {
  timer_ = 0;
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  io_.Run(
      [files = parts_.files, status] { *status = files->List("").status(); },
      [this, status] { OnLooked(*status); });
}

}  // namespace ballast::daemon
