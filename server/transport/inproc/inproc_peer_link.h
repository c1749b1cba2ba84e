// Frames between nodes that live in one process, with the faults of a
// LinkModel.
//
// Threading: all links of one network on one thread.
#ifndef SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_
#define SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/peer_link.h"

namespace ballast::transport {

class InprocPeerLink;

class InprocPeerNetwork {
 public:
  // `links` outlives the network, which outlives its links; the model's
  // executor runs nothing after the network is gone.
  explicit InprocPeerNetwork(LinkModel* links);
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
  void Arrive(NodeRank from, NodeRank to, std::string frame);
  void Deliver(NodeRank from, NodeRank to, std::string frame);

  LinkModel* const links_;
  Filter drop_;
  absl::flat_hash_map<NodeRank, InprocPeerLink*> nodes_;
  uint64_t next_id_ = 1;
  // Frames in order, by directed link.
  absl::flat_hash_map<std::pair<NodeRank, NodeRank>, std::deque<std::string>>
      under_way_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_INPROC_PEER_LINK_H_
