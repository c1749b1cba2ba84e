// The real peer plane: nodes meet at node 0's daemon (membership::Rendezvous,
// over gRPC) and are linked by UCX, one transport per job.
//
//   Open: transport of the job -> its token -> poll node 0 until all are there
//         -> connect to each of the others -> links
//
// Threading: control thread only; UCX and gRPC bring threads of their own.
// Lifetime: borrows its parts; openings and links are released before it.
#ifndef SERVER_DAEMON_UCX_PEER_PLANE_H_
#define SERVER_DAEMON_UCX_PEER_PLANE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/daemon/peer_plane.h"
#include "server/membership/rendezvous.h"
#include "server/transport/ucx/ucx_transport.h"

namespace ballast::daemon {

class UcxPeerPlane final : public PeerPlane {
 public:
  struct Options {
    std::string node_name;
    std::string coordinator;  // of jobs that name none; may be empty
    transport::UcxTransport::Options ucx;
  };
  struct Parts {
    const base::Clock* clock;
    base::Executor* executor;
    membership::Rendezvous* rendezvous;  // of the jobs whose node 0 is here
  };

  // FailedPrecondition if UCX does not find what the options name.
  static absl::StatusOr<std::unique_ptr<UcxPeerPlane>> Create(
      const Options& options, const Parts& parts);

  std::string_view transport_name() const override { return "ucx"; }
  absl::Status Check(NodeRank node,
                     const std::string& coordinator) const override;
  std::unique_ptr<Opening> Open(const LinksRequest& request,
                                Done done) override;

 private:
  UcxPeerPlane(const Options& options, const Parts& parts)
      : options_(options), parts_(parts) {}

  const Options options_;
  const Parts parts_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_UCX_PEER_PLANE_H_
