// The protocol of one node towards all its peers: greetings, liveness, frames
// and, by way of ExchangeTable, exchanges. Knows nothing of UCX: Wire asks
// it for the next message of a peer and gives it what comes in.
//
// Threading: thread-safe. A call holds the lock at most for the copy and the
// checksum of one chunk; that is also the longest that Cancel waits.
// Failure: a peer fails (Unavailable, with the reason) when it does not answer
// a hello within connect_timeout, is silent for peer_timeout in spite of
// pings, or its connection breaks; then all that waits for it fails.
#ifndef SERVER_TRANSPORT_UCX_PROTOCOL_H_
#define SERVER_TRANSPORT_UCX_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/base/mutex.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/exchange_table.h"
#include "server/transport/ucx/message.h"
#include "server/transport/ucx/peer.h"

namespace ballast::transport {

class Protocol {
 public:
  struct Options {
    ExchangeTable::Options exchanges;
    absl::Duration connect_timeout = absl::Seconds(20);
    absl::Duration peer_timeout = absl::Seconds(10);
    absl::Duration ping_interval = absl::Seconds(1);
    // Of one peer that takes nothing; of all peers together while the control
    // thread takes nothing.
    size_t max_queued_frame_bytes = 16 << 20;
    size_t max_inbox_bytes = 64 << 20;
  };

  // What waits for the control thread.
  struct Deliveries {
    std::vector<Completion> completions;
    std::vector<std::pair<NodeRank, std::string>> frames;
  };

  // What a wire should do for a peer.
  enum class Next {
    kNothing,
    kSlot,   // send the message in the slot
    kFrame,  // send the frame
    kClose,  // the peer failed or is not wanted any more
  };

  Protocol(const Options& options, NodeRank self, Incarnation incarnation);

  Protocol(const Protocol&) = delete;
  Protocol& operator=(const Protocol&) = delete;

  // Control side.

  // A new peer, or a new life of one; what waits for the old one fails.
  // Returns the number of the connection that a wire is to make.
  uint64_t Connect(NodeRank node, Incarnation incarnation, absl::Time now);
  void Disconnect(NodeRank node);
  // NotFound, OK (also while it connects) or why the peer failed.
  absl::Status PeerStatus(NodeRank node) const;
  ByteCounters PeerCounters(NodeRank node) const;

  // The exchange stays the protocol's until Release.
  absl::StatusOr<PreparedExchange*> Prepare(const ExchangeSpec& spec);
  void Release(PreparedExchange* exchange);
  // The number of this Post, as completions tell it.
  absl::StatusOr<uint64_t> Post(PreparedExchange* exchange, Step step,
                                absl::Time now);
  void Cancel(PreparedExchange* exchange);
  ByteCounters CountersOf(const PreparedExchange* exchange) const;

  // ResourceExhausted if the peer takes too little.
  absl::Status SendFrame(NodeRank to, std::string_view frame);

  Deliveries TakeDeliveries();
  ProtocolStats stats() const;

  // Wire side. Of another connection than the newest nothing counts.

  size_t max_message_bytes() const;  // what a slot must hold
  // `slot` has max_message_bytes.
  Next NextMessage(NodeRank node, uint64_t connection, bool may_send_frame,
                   std::span<std::byte> slot, size_t* size, std::string* frame);
  // Hostile input (I27).
  void OnMessage(std::span<const std::byte> message, absl::Time now);
  void OnConnectionFailed(NodeRank node, uint64_t connection,
                          const absl::Status& status);
  // To be called every tick_period().
  void Tick(absl::Time now);
  absl::Duration tick_period() const;
  bool HasDeliveries() const;

 private:
  Peer* FindPeer(NodeRank node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailPeer(Peer* peer, absl::StatusCode code, std::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnHello(Peer* peer, const MessageHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnFrame(Peer* peer, std::span<const std::byte> frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool NextWithoutPayload(Peer* peer, MessageHeader* header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Address(const Peer& peer, MessageHeader* header) const;

  const Options options_;
  const NodeRank self_;
  const Incarnation incarnation_;

  mutable base::Mutex mutex_;
  ProtocolStats stats_ ABSL_GUARDED_BY(mutex_);
  ExchangeTable::Peers peers_ ABSL_GUARDED_BY(mutex_);
  ExchangeTable table_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<NodeRank, std::string>> inbox_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_connection_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t inbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_tick_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_PROTOCOL_H_
