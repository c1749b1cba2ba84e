// Calls the PeerService of another daemon, without waiting.
//
// Threading: control thread only; answers come there too.
// Lifetime: releasing it gives up the open calls: no answer follows.
// `executor` may go before gRPC has ended them.
#ifndef SERVER_SERVICE_PEER_CLIENT_H_
#define SERVER_SERVICE_PEER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/peer.pb.h"
#include "server/base/executor.h"

namespace ballast::service {

class PeerClient {
 public:
  using RendezvousDone =
      absl::AnyInvocable<void(absl::StatusOr<v1::RendezvousReply>) &&>;

  // `address` is "host:port". Does not connect yet.
  static std::unique_ptr<PeerClient> Create(const std::string& address,
                                            base::Executor* executor);
  virtual ~PeerClient() = default;

  // Unavailable or DeadlineExceeded: the daemon did not answer.
  virtual void Rendezvous(const v1::RendezvousRequest& request,
                          absl::Duration timeout, RendezvousDone done) = 0;
  // The same without an answer; goes on after the release of this.
  virtual void Tell(const v1::RendezvousRequest& request,
                    absl::Duration timeout) = 0;
};

}  // namespace ballast::service

#endif  // SERVER_SERVICE_PEER_CLIENT_H_
