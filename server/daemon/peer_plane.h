// How a job on this node gets its links to the job's other nodes: the seam
// between the real peer plane (gRPC rendezvous, UCX) and a simulated one.
//
//   opening = plane->Open(request, done);   … done(links): all nodes are there
//   links->transport()->Prepare(…); links->peer_link()->Send(…);
//
// Node ranks are a job's own, so every job has links of its own.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_PEER_PLANE_H_
#define SERVER_DAEMON_PEER_PLANE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/transport/peer_link.h"
#include "server/transport/transport.h"

namespace ballast::daemon {

struct LinksRequest {
  std::string job;
  NodeRank node;
  Incarnation incarnation;  // of this job's life on this node
  std::string coordinator;  // host:port of node 0; empty: the daemon's own
  v1::Join join;            // what all nodes must agree on
};

enum class PeerState { kConnecting, kReady, kFailed };

inline std::string_view Name(PeerState state) {
  switch (state) {
    case PeerState::kConnecting:
      return "connecting";
    case PeerState::kReady:
      return "ready";
    case PeerState::kFailed:
      return "failed";
  }
  return "unknown";
}

// Closed when released: the other nodes' links to this one fail. Exchanges are
// released before. Lost links do not come back: the nodes meet again, each in
// a new incarnation and only after it has released its old links.
class JobLinks {
 public:
  virtual ~JobLinks() = default;
  virtual transport::Transport* transport() = 0;
  virtual transport::PeerLink* peer_link() = 0;
  // The life of the job on that node that was met; 0: not known. What comes
  // from another one is not of these links.
  virtual Incarnation IncarnationOf(NodeRank node) const = 0;
  // `why` is set for kFailed, which is final; it names the node.
  virtual PeerState StateOf(NodeRank node, absl::Status* why) const = 0;
};

// Links on their way. Releasing it gives them up: `done` is not called.
class Opening {
 public:
  virtual ~Opening() = default;
  // Who has not come, in words.
  virtual std::string WaitingFor() const = 0;
  // Tells the nodes that wait for this one that it gives up for good; it is
  // released next. Best effort.
  virtual void GiveUp(const absl::Status& why) = 0;
};

class PeerPlane {
 public:
  using Done =
      absl::AnyInvocable<void(absl::StatusOr<std::unique_ptr<JobLinks>>) &&>;

  virtual ~PeerPlane() = default;

  // Metrics' name of the transport.
  virtual std::string_view transport_name() const = 0;

  // Whether a job can be opened: asked at attach, so that a worker hears what
  // is missing. InvalidArgument names the remedy.
  virtual absl::Status Check(NodeRank node,
                             const std::string& coordinator) const = 0;

  // Waits without bound: the job's own timeouts give it up. An error is final:
  // this node and the others contradict each other, or there is no transport;
  // but of a job that goes on Unavailable is not: another opening may do.
  // `done` is never called from inside Open; it may release the Opening.
  virtual std::unique_ptr<Opening> Open(const LinksRequest& request,
                                        Done done) = 0;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_PEER_PLANE_H_
