// One job's other nodes, as this node sees them: opens the links, watches
// them, carries frames, and exchanges notes about whom each node waits for.
//
//   Open ─▶ opening ─▶ OnLinked ─▶ frames, a look at every link each 500 ms
//                 │                    └─▶ OnLinkLost (once)
//                 └─▶ OnPeersLost (once)
//
// Links that are lost are gone with this object; the next one makes new ones.
//
// Threading: control thread only. The host is never called from inside a call.
// Ownership: the links, and pulls over them; borrows its parts. Exchanges over
// transport() are released before it, sources of pulls outlive it.
#ifndef SERVER_DAEMON_JOB_PEERS_H_
#define SERVER_DAEMON_JOB_PEERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/peer.pb.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/daemon/peer_plane.h"
#include "server/daemon/timed_transport.h"
#include "server/metrics/metrics.h"
#include "server/transport/peer_link.h"
#include "server/transport/pulls.h"
#include "server/transport/transport.h"

namespace ballast::daemon {

class JobPeersHost {
 public:
  virtual ~JobPeersHost() = default;
  virtual void OnLinked() = 0;
  // There will be no links; `why` names the node.
  virtual void OnPeersLost(const absl::Status& why) = 0;
  // One of the links is lost; likewise.
  virtual void OnLinkLost(const absl::Status& why) = 0;
  // All links work; again and again.
  virtual void OnAllLinked() = 0;
  virtual void OnPeerFrame(NodeRank from, const v1::PeerFrame& frame) = 0;
  // What this node's own workers owe, in words: told to the other nodes.
  virtual std::string OwnWaitingFor() const = 0;
  // Of this node's ranks the one that closed the job first, if any did.
  virtual std::optional<v1::EarlyClose> OwnEarlyClose() const = 0;
  // The same of another node; told again and again.
  virtual void OnPeerClosed(const v1::EarlyClose& close) = 0;
};

class JobPeers final : public transport::PeerLinkObserver,
                       private transport::PullFramePort {
 public:
  struct Parts {
    PeerPlane* plane;
    uint64_t job_key;  // of exchanges: equal on all nodes of the job
    const base::Clock* clock;
    base::Executor* executor;
    metrics::JobMetrics* metrics;  // null: none
    JobPeersHost* host;
  };

  JobPeers(const Parts& parts, LinksRequest request);
  ~JobPeers() override;

  // Once.
  void Open();
  // Nothing of the host is called any more; what is sent still goes out.
  void Stop();
  // What a look at the links would tell the others, without waiting for it.
  void TellNow();
  // Before OnLinked: this node gives up for good; whoever waits hears `why`,
  // as Aborted where it is Unavailable: they would go on asking.
  void GiveUp(const absl::Status& why);

  // Null before OnLinked.
  transport::Transport* transport() const { return transport_.get(); }
  transport::Pulls* pulls() const { return pulls_.get(); }
  // Whether an exchange of gradients or weights is under way.
  bool is_exchanging() const {
    return transport_ != nullptr && transport_->num_posted() > 0;
  }
  // A frame that cannot be sent is a lost one.
  void Send(NodeRank to, const v1::PeerFrame& frame);

  // Who has not come, or what other nodes wait for; empty if for nobody.
  std::string WaitingFor() const;
  std::vector<v1::PeerNode> Nodes() const;  // all, by node rank
  int Count(PeerState state) const;
  int64_t dropped_frames() const { return dropped_frames_; }

  // transport::PeerLinkObserver
  void OnFrame(NodeRank from, std::string frame) override;

 private:
  int num_nodes() const { return request_.join.num_nodes(); }
  PeerState StateOf(int node, absl::Status* why) const {
    return links_->StateOf(NodeRank(node), why);
  }
  v1::PeerFrame MakeFrame() const;
  bool IsOfTheseLinks(NodeRank from, const v1::PeerFrame& frame) const;
  absl::Status SendPull(NodeRank to, const v1::Pull& pull) override;
  void OnLinks(absl::StatusOr<std::unique_ptr<JobLinks>> links);
  void MakeTransport();
  void ArmWatch();
  void Watch();
  void TellNote();

  const Parts parts_;
  const LinksRequest request_;
  std::unique_ptr<Opening> opening_;  // until there are links
  std::unique_ptr<JobLinks> links_;
  std::unique_ptr<TimedTransport> transport_;  // over the links'
  std::unique_ptr<transport::Pulls> pulls_;
  std::vector<std::string> notes_;  // by node rank
  std::string told_note_;
  base::TimerId watch_ = 0;
  int64_t dropped_frames_ = 0;
  bool is_stopped_ = false;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_PEERS_H_
