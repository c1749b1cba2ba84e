// Frames between nodes that live in one process, with the faults of a
// LinkModel.
//
// Threading: all links of one network on one thread.
#ifndef SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_
#define SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/peer_link.h"

namespace ballast::transport {

class InprocPeerLink;

class InprocPeerNetwork {
 public:
  // Both outlive the network, which outlives its links; the model's executor
  // runs nothing after the network is gone.
  InprocPeerNetwork(LinkModel* links, const base::Clock* clock);
  ~InprocPeerNetwork();

  InprocPeerNetwork(const InprocPeerNetwork&) = delete;
  InprocPeerNetwork& operator=(const InprocPeerNetwork&) = delete;

  // One link per node at a time. Frames for a node without a link are lost.
  absl::StatusOr<std::unique_ptr<PeerLink>> AddNode(NodeRank node,
                                                    base::Executor* executor);

  // A test's own rule: frames for which `drop` says true are lost.
  using Filter = absl::AnyInvocable<bool(NodeRank from, NodeRank to,
                                         const std::string& frame)>;
  void SetFilter(Filter drop) { drop_ = std::move(drop); }

 private:
  friend class InprocPeerLink;

  absl::Status Send(NodeRank from, NodeRank to, std::string frame);
  void Carry(NodeRank from, NodeRank to, std::string frame);
  void Deliver(NodeRank from, NodeRank to, std::string frame);

  LinkModel* const links_;
  const base::Clock* const clock_;
  Filter drop_;
  absl::flat_hash_map<NodeRank, InprocPeerLink*> nodes_;
  // When the last frame of a directed link arrives: the next comes later.
  absl::flat_hash_map<std::pair<NodeRank, NodeRank>, absl::Time> last_arrival_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_
