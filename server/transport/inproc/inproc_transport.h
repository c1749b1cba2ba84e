// The transport of nodes that live in one process: a single-node daemon's (no
// peers), and a simulated cluster's.
//
// Rendezvous: a part is copied once, straight from the sender's memory to the
// receiver's, when both sides have posted and the link's delay has passed; a
// side that cancelled meanwhile gives and takes nothing.
//
// Threading: all endpoints of one network on one thread (their executors are
// lanes of one SimExecutor, or one EventLoop).
#ifndef SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_
#define SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/transport.h"

namespace ballast::transport {

class InprocEndpoint;
class InprocExchange;

class InprocNetwork {
 public:
  static constexpr uint64_t kHeaderBytes = 48;  // per part on the wire

  // `links` outlives the network; the network outlives its endpoints, and
  // `links->executor()` runs nothing after the network is gone.
  explicit InprocNetwork(LinkModel* links);
  ~InprocNetwork();

  InprocNetwork(const InprocNetwork&) = delete;
  InprocNetwork& operator=(const InprocNetwork&) = delete;

  // A node's endpoint; completions run on its `executor`. One at a time per
  // node: after the old one is released (its process died), a new one may
  // come. When an endpoint goes, posted parts of its peers that wait for it
  // fail with Unavailable.
  absl::StatusOr<std::unique_ptr<Transport>> AddNode(NodeRank node,
                                                     base::Executor* executor);

 private:
  friend class InprocEndpoint;
  friend class InprocExchange;
  // (job, generation, phase, bucket, node)
  using ExchangeKey = std::tuple<uint64_t, int64_t, uint32_t, int32_t, int32_t>;

  void RemoveNode(NodeRank node);
  InprocExchange* Find(const ExchangeKey& key);
  InprocExchange* FindById(uint64_t exchange_id);
  void Match(InprocExchange* exchange);
  void StartPart(InprocExchange* sender, InprocExchange* receiver);
  void DeliverPart(uint64_t sender_id, uint64_t sender_post,
                   uint64_t receiver_id, uint64_t receiver_post);

  LinkModel* const links_;
  uint64_t next_id_ = 1;
  absl::flat_hash_map<NodeRank, InprocEndpoint*> endpoints_;
  absl::flat_hash_map<ExchangeKey, InprocExchange*> exchanges_;
  absl::flat_hash_map<uint64_t, InprocExchange*> exchanges_by_id_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_
