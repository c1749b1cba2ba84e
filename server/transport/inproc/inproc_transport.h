// The transport of nodes that live in one process: a single-node daemon's (no
// peers), and a simulated cluster's.
//
// Rendezvous: a part is copied once, straight from the sender's memory to the
// receiver's, when both sides have posted and the link's delay has passed; a
// side that cancelled meanwhile gives and takes nothing. Lost parts are sent
// again, parts on a cut link wait until it is healed.
//
// Threading: all endpoints of one network on one thread (their executors are
// lanes of one SimExecutor, or one EventLoop).
#ifndef SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_
#define SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

  // What matches, beside the step and the two nodes.
  struct Identity {
    uint64_t job;
    int64_t generation;
    uint32_t phase;
    int32_t bucket;
    int32_t node;

    bool operator==(const Identity&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Identity& id) {
      return H::combine(std::move(h), id.job, id.generation, id.phase,
                        id.bucket, id.node);
    }
  };
  // One posted life of an exchange: void once it is cancelled or done.
  struct Ticket {
    uint64_t exchange = 0;
    uint64_t post = 0;
    bool operator==(const Ticket&) const = default;
  };

  void RemoveNode(NodeRank node);
  InprocExchange* Find(const Identity& identity);
  InprocExchange* Find(const Ticket& ticket);
  InprocExchange* FindById(uint64_t id);
  // Starts every part of `exchange` whose other side is posted too.
  void Match(InprocExchange* exchange);
  void StartPart(InprocExchange* sender, InprocExchange* receiver);
  void SendPart(const Ticket& sender, const Ticket& receiver);
  void ScheduleArrival(absl::Duration delay, const Ticket& sender,
                       const Ticket& receiver);
  void Arrive(const Ticket& sender, const Ticket& receiver);
  void ResumeHeld();

  LinkModel* const links_;
  uint64_t next_id_ = 1;
  absl::flat_hash_map<NodeRank, InprocEndpoint*> endpoints_;
  absl::flat_hash_map<Identity, InprocExchange*> by_identity_;
  absl::btree_map<uint64_t, InprocExchange*> by_id_;
  // Parts that wait for a cut link.
  std::vector<std::pair<Ticket, Ticket>> held_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_INPROC_TRANSPORT_H_
