#include "server/ipc/fake_worker_link.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "server/base/errno_status.h"

namespace ballast::ipc {

FakeWorkerLink::FakeWorkerLink(const PeerIdentity& peer,
                               const ConnectionKey& key, FakeWorkerEnd* end)
    : peer_(peer), key_(key), end_(end) {}

FakeWorkerLink::~FakeWorkerLink() { Close(); }

absl::Status FakeWorkerLink::SendSegment(proto::SegmentKind kind, int fd,
                                         uint64_t size_bytes) {
  if (end_->is_closed) {
    return absl::FailedPreconditionError("the worker's connection has ended");
  }
  base::UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return base::ErrnoStatus(errno, "duplicate segment fd");
  end_->segments.push_back({kind, size_bytes, std::move(copy)});
  return absl::OkStatus();
}

void FakeWorkerLink::Close() {
  end_->is_closed = true;
  observer_ = nullptr;
}

void FakeWorkerLink::Ring() {
  if (observer_ != nullptr) observer_->OnDoorbell(this);
}

void FakeWorkerLink::Die(const absl::Status& reason) {
  WorkerLinkObserver* const observer = observer_;
  Close();
  // Last: the observer may destroy this.
  if (observer != nullptr) observer->OnLost(this, reason);
}

}  // namespace ballast::ipc
