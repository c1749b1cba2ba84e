// The seam to one connected worker process: who it is, how it gets memory,
// its doorbells, its end. Real: HandleConnection. Simulated: FakeWorkerLink.
//
// Threading: control thread only.
#ifndef SERVER_IPC_WORKER_LINK_H_
#define SERVER_IPC_WORKER_LINK_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/handle_socket.h"
#include "server/base/unique_fd.h"

namespace ballast::ipc {

// The identity of a connection: every gRPC call of it carries this. Secret.
struct ConnectionKey {
  std::array<uint8_t, 16> bytes{};

  bool operator==(const ConnectionKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const ConnectionKey& key) {
    return H::combine(std::move(h), key.bytes);
  }
};

// As the kernel says (SO_PEERCRED), in the daemon's namespaces.
struct PeerIdentity {
  pid_t pid = 0;  // 0: of a pid namespace that the daemon does not see
  uid_t uid = 0;
  gid_t gid = 0;
};

class WorkerLink;

class WorkerLinkObserver {
 public:
  virtual ~WorkerLinkObserver() = default;

  // The worker changed its control block; several doorbells may come as one.
  virtual void OnDoorbell(WorkerLink* link) = 0;

  // The worker closed, died, or broke the protocol, as `reason` says. Called
  // exactly once, and last; not after Close(). May destroy the link.
  virtual void OnLost(WorkerLink* link, const absl::Status& reason) = 0;
};

class WorkerLink {
 public:
  // Without a word to the observer; closes the connection.
  virtual ~WorkerLink() = default;

  virtual const PeerIdentity& peer() const = 0;
  virtual const ConnectionKey& key() const = 0;

  // Names who hears of doorbells and of the end; what came before is reported
  // at once. The observer outlives the link. Before that nothing is reported.
  virtual void Start(WorkerLinkObserver* observer) = 0;

  // Hands a segment to the worker. Duplicates `fd`, whose access mode is the
  // worker's right: pass a read-only one for what it only reads. Never
  // blocks: ResourceExhausted if the worker does not read what it was sent;
  // FailedPrecondition after the end.
  virtual absl::Status SendSegment(proto::SegmentKind kind, int fd,
                                   uint64_t size_bytes) = 0;

  // Handle socket and pidfd, for a keeper; they stay the link's. Empty after
  // the end.
  virtual std::vector<int> fds() const = 0;

  // Gives the worker its key and a new control connection (welcome.h).
  virtual absl::StatusOr<base::UniqueFd> SendControl() = 0;

  // Ends the connection from this side; the observer hears nothing more.
  virtual void Close() = 0;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_WORKER_LINK_H_
