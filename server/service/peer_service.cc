#include "server/service/peer_service.h"

#include <utility>

#include "proto/peer_service.grpc.pb.h"
#include "server/service/responder.h"

namespace ballast::service {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class PeerService final : public v1::PeerService::CallbackService {
 public:
  explicit PeerService(const PeerServiceParts& parts) : parts_(parts) {}

  ServerUnaryReactor* Rendezvous(CallbackServerContext* context,
                                 const v1::RendezvousRequest* request,
                                 v1::RendezvousReply* reply) override {
    ServerUnaryReactor* const reactor = context->DefaultReactor();
    parts_.executor->Post([this, request, reply,
                           responder = Responder(reactor, "Rendezvous",
                                                 parts_.observer)]() mutable {
      responder.Finish(Answer(*request, reply));
    });
    return reactor;
  }

 private:
  absl::Status Answer(const v1::RendezvousRequest& request,
                      v1::RendezvousReply* reply) {
    // The daemon of node 0 is the one that is asked: it asks itself directly.
    if (request.node() == 0) {
      return absl::InvalidArgumentError(
          "node 0 of a job meets the others at its own daemon: two nodes have "
          "the rank 0, or one has the wrong coordinator");
    }
    absl::StatusOr<v1::RendezvousReply> answer =
        parts_.rendezvous->Poll(request, parts_.clock->Now());
    if (answer.ok()) *reply = *std::move(answer);
    return answer.status();
  }

  const PeerServiceParts parts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(const PeerServiceParts& parts) {
  return std::make_unique<PeerService>(parts);
}

}  // namespace ballast::service
