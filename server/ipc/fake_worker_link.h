// A worker link without a socket, for simulation: the test rings and kills.
#ifndef SERVER_IPC_FAKE_WORKER_LINK_H_
#define SERVER_IPC_FAKE_WORKER_LINK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/base/unique_fd.h"
#include "server/ipc/worker_link.h"

namespace ballast::ipc {

// What a worker got: the far side's view of a link.
struct FakeWorkerEnd {
  struct Received {
    proto::SegmentKind kind;
    uint64_t size_bytes;
    base::UniqueFd fd;
  };
  std::vector<Received> segments;
  bool is_closed = false;  // by the daemon: Close() or destruction
};

class FakeWorkerLink final : public WorkerLink {
 public:
  // `end` outlives the link.
  FakeWorkerLink(const PeerIdentity& peer, const ConnectionKey& key,
                 FakeWorkerEnd* end);
  ~FakeWorkerLink() override;

  const PeerIdentity& peer() const override { return peer_; }
  const ConnectionKey& key() const override { return key_; }
  void Start(WorkerLinkObserver* observer) override { observer_ = observer; }
  absl::Status SendSegment(proto::SegmentKind kind, int fd,
                           uint64_t size_bytes) override;
  std::vector<int> fds() const override { return {}; }
  absl::StatusOr<base::UniqueFd> SendControl() override {
    return absl::UnavailableError("a fake has no control connection");
  }
  void Close() override;

  // Called on the control thread of the simulated daemon.
  void Ring();
  void Die(const absl::Status& reason);

 private:
  const PeerIdentity peer_;
  const ConnectionKey key_;
  FakeWorkerEnd* const end_;
  WorkerLinkObserver* observer_ = nullptr;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_FAKE_WORKER_LINK_H_
