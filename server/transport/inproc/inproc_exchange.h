// One prepared exchange of one endpoint of an InprocNetwork.
//
// Threading: its network's.
#ifndef SERVER_TRANSPORT_INPROC_INPROC_EXCHANGE_H_
#define SERVER_TRANSPORT_INPROC_INPROC_EXCHANGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/inproc/inproc_transport.h"
#include "server/transport/transport.h"

namespace ballast::transport {

class InprocExchange final : public Exchange {
 public:
  InprocExchange(InprocNetwork* network, NodeRank self,
                 base::Executor* executor, ExchangeSpec spec,
                 ExchangeObserver* observer);
  ~InprocExchange() override;

  absl::Status Post(Step step) override;
  void Cancel() override;
  bool is_posted() const override { return is_posted_; }
  const ByteCounters& counters() const override { return counters_; }

 private:
  friend class InprocNetwork;

  struct Peer {
    NodeRank node;
    bool is_done = false;
    // Sends only: the receiver's post that it is on its way to.
    InprocNetwork::Ticket under_way_to{};
  };

  InprocNetwork::Identity IdentityOf(NodeRank node) const;
  InprocNetwork::Ticket ticket() const { return {id_, post_}; }
  // Open parts only; nullptr if there is none.
  Peer* OpenSend(NodeRank to);
  Peer* OpenReceive(NodeRank from);
  std::span<const std::byte> SendBytes(NodeRank to) const;
  std::span<std::byte> ReceiveBytes(NodeRank from) const;
  bool WaitsFor(NodeRank node) const;

  // Of a part; the last one, or an error, ends the posted step.
  void FinishPart(Peer* part);
  void Finish(const absl::Status& status);
  void Report();

  InprocNetwork* const network_;
  const uint64_t id_;
  const NodeRank self_;
  base::Executor* const executor_;
  const ExchangeSpec spec_;
  ExchangeObserver* const observer_;
  ByteCounters counters_;

  bool is_posted_ = false;    // until the observer is told
  bool is_finished_ = false;  // `result_` waits for the observer
  absl::Status result_;
  uint64_t post_ = 0;  // counts posts: fences what is still under way
  Step step_;
  size_t num_open_ = 0;
  std::vector<Peer> sends_;     // as spec_.sends
  std::vector<Peer> receives_;  // as spec_.receives
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_INPROC_INPROC_EXCHANGE_H_
