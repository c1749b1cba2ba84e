// Exchanges and frames between daemons over UCX. A process has one; peers are
// connected by the tokens that they give one another by another way (the peer
// plane's gRPC).
//
//   ASSIGN_OR_RETURN(auto transport, UcxTransport::Create(…));
//   … transport->LocalToken() to node 1, its token here …
//   RETURN_IF_ERROR(transport->Connect(NodeRank(1), token, incarnation));
//   transport->Prepare(…); transport->peer_link()->Send(…);
//
// Threading: control thread only; a thread of its own makes progress.
// Lifetime: `clock` and `executor` outlive the transport.
// Failure: see protocol.h; every bound is an option. A peer that failed stays
// so until Connect. The destructor waits at most wire.drain_timeout, for what
// was already said to reach the others.
#ifndef SERVER_TRANSPORT_UCX_UCX_TRANSPORT_H_
#define SERVER_TRANSPORT_UCX_UCX_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/base/ids.h"
#include "server/transport/peer_link.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/protocol.h"
#include "server/transport/ucx/ucx_exchange.h"
#include "server/transport/ucx/wire.h"

namespace ballast::transport {

class UcxTransport final : public Transport {
 public:
  struct Options {
    Wire::Options wire;
    Protocol::Options protocol;
    // Without it the owner makes progress, by RunOnce.
    bool has_thread = true;
  };

  // InvalidArgument for options that make no sense; FailedPrecondition when
  // the devices or transports that they name are not there. Without
  // wire.listen_address, wire.devices must name one device.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(
      const Options& options, NodeRank self, Incarnation incarnation,
      const base::Clock* clock, base::Executor* executor);
  ~UcxTransport() override;

  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  // Opaque bytes that let others connect.
  std::string LocalToken() const;

  // Does not wait. What is posted meanwhile waits for the peer's own Connect,
  // for at most connect_timeout. InvalidArgument for a token that is none or
  // another node's; FailedPrecondition if it is of another incarnation.
  absl::Status Connect(NodeRank node, std::string_view token,
                       Incarnation incarnation);
  // What waits for the node fails here; there it is noticed as silence.
  void Disconnect(NodeRank node);

  // NotFound, OK (also while it connects) or why the peer failed.
  absl::Status PeerStatus(NodeRank node) const;
  ByteCounters PeerCounters(NodeRank node) const;
  ProtocolStats stats() const;

  // Frames over the same connections; the transport's own.
  PeerLink* peer_link() { return &peer_link_; }

  const Capabilities& capabilities() const override { return capabilities_; }
  NodeRank self() const override { return self_; }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const ExchangeSpec& spec, ExchangeObserver* observer) override;

  // Only without a thread: does what there is to do, waits at most `max_wait`
  // if there is nothing.
  void RunOnce(absl::Duration max_wait);

 private:
  friend class UcxExchange;

  class Link final : public PeerLink {
   public:
    explicit Link(UcxTransport* transport) : transport_(transport) {}
    NodeRank self() const override { return transport_->self_; }
    void SetObserver(PeerLinkObserver* observer) override {
      observer_ = observer;
    }
    absl::Status Send(NodeRank to, std::string frame) override;
    PeerLinkObserver* observer() const { return observer_; }

   private:
    UcxTransport* const transport_;
    PeerLinkObserver* observer_ = nullptr;
  };

  // Shared with the functions posted to the executor, which may run after the
  // transport is gone: hence a shared_ptr.
  struct Hub {
    UcxTransport* transport;  // control thread only
    std::atomic<bool> is_scheduled{false};
  };

  UcxTransport(const Options& options, NodeRank self, Incarnation incarnation,
               const base::Clock* clock, base::Executor* executor);

  void Run();
  // After a call that may have given the wire or the control thread work.
  void Nudge();
  void ScheduleDelivery();
  void Deliver();

  const Options options_;
  const Capabilities capabilities_;
  const NodeRank self_;
  const Incarnation incarnation_;
  const base::Clock* const clock_;
  base::Executor* const executor_;
  const std::shared_ptr<Hub> hub_;
  Link peer_link_;
  absl::flat_hash_map<uint64_t, UcxExchange*> exchanges_;
  Protocol protocol_;
  std::unique_ptr<Wire> wire_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCX_TRANSPORT_H_
