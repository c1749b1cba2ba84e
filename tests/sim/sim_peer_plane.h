// A peer plane over the simulated networks. Nodes that begin a job have links
// at once, unless their daemons are replaced meanwhile: that they meet at all
// is membership's affair here. Nodes that go on with one meet at node 0's
// daemon as the real ones do (membership::Rendezvous), by polls that are lost
// where the network is cut or that daemon is away.
//
// Every opening has an endpoint and a peer link of its own, gone with the
// links: what another node still waits for from them fails.
//
// Threading: events of its daemon's SimProcess.
#ifndef TESTS_SIM_SIM_PEER_PLANE_H_
#define TESTS_SIM_SIM_PEER_PLANE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/daemon/peer_plane.h"
#include "server/membership/rendezvous.h"
#include "server/transport/inproc/inproc_peer_link.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/inproc/link_model.h"

namespace ballast::sim {

// Of one node, around the one it is given; both outlive its exchanges.
using WrapTransport = std::function<std::unique_ptr<transport::Transport>(
    transport::Transport* inner, base::Executor* executor)>;

// What the planes of all nodes share.
struct SimNetworks {
  transport::LinkModel* links = nullptr;
  transport::InprocNetwork* exchanges = nullptr;
  transport::InprocPeerNetwork* frames = nullptr;
  const base::Clock* clock = nullptr;
  WrapTransport wrap = nullptr;
  // Where the nodes meet; null while node 0's daemon is away.
  membership::Rendezvous* rendezvous = nullptr;
  // Nodes that begin a job meet too: their daemons may be replaced meanwhile.
  bool meets_to_begin = false;
  // Whether this request of a node to meet the others, or the reply, is lost.
  std::function<bool(int node, bool is_reply)> loses_poll = nullptr;
  std::set<int> stopped = {};  // nodes whose daemons do not run just now
  std::map<int, uint64_t> lives = {};   // of open links, by node
  std::map<int, absl::Time> ends = {};  // of those that were closed, the last
};

class SimPeerPlane final : public daemon::PeerPlane {
 public:
  SimPeerPlane(NodeRank self, base::Executor* executor, SimNetworks* networks);
  ~SimPeerPlane() override;

  // What is opened from now on goes by other networks: the daemon is another
  // node of another job. Links of before stay where they are.
  void Use(NodeRank self, SimNetworks* networks);

  std::string_view transport_name() const override { return "inproc"; }
  absl::Status Check(NodeRank node, const std::string&) const override;
  std::unique_ptr<daemon::Opening> Open(const daemon::LinksRequest& request,
                                        Done done) override;

 private:
  class Links;
  class Beginning;
  class Meeting;

  absl::StatusOr<v1::RendezvousReply> Poll(
      const v1::RendezvousRequest& request) const;
  std::unique_ptr<daemon::JobLinks> MakeLinks(
      const daemon::LinksRequest& request, std::map<int, uint64_t> members);

  NodeRank self_;
  base::Executor* const executor_;
  SimNetworks* networks_;
  membership::Rendezvous rendezvous_;  // node 0's
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_PEER_PLANE_H_
