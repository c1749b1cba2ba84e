// The prepared exchanges of a node and the rules by which their parts move
// (message.h draws them). Pure: time comes as an argument, messages come and
// go as headers and spans.
//
// Threading: thread-compatible (Protocol guards it).
#ifndef SERVER_TRANSPORT_UCX_EXCHANGE_TABLE_H_
#define SERVER_TRANSPORT_UCX_EXCHANGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/message.h"
#include "server/transport/ucx/part.h"
#include "server/transport/ucx/peer.h"

namespace ballast::transport {

struct Completion {
  uint64_t exchange;
  uint64_t post;
  Step step;
  absl::Status status;
};

// What was refused or repeated. Nothing of it is silent (P5).
struct ProtocolStats {
  uint64_t malformed = 0;        // messages whose header fails its check
  uint64_t fenced = 0;           // of another incarnation, step or Post
  uint64_t unmatched = 0;        // for exchanges that are not prepared
  uint64_t bad_payloads = 0;     // checksums that were wrong
  uint64_t resends = 0;          // chunks sent a second time
  uint64_t duplicates = 0;       // chunks that were in already
  uint64_t replies_dropped = 0;  // the peer takes nothing
  uint64_t frames_dropped = 0;   // nobody listens, or too slowly
};

class ExchangeTable {
 public:
  struct Options {
    uint32_t chunk_bytes = 256 << 10;
    uint64_t checksum_seed = 0;
    // Of one posted step; DeadlineExceeded says who is missing.
    absl::Duration deadline = absl::InfiniteDuration();
  };
  using Peers = absl::flat_hash_map<NodeRank, std::unique_ptr<Peer>>;

  // `peers` and `stats` outlive the table.
  ExchangeTable(const Options& options, NodeRank self, Peers* peers,
                ProtocolStats* stats);
  ~ExchangeTable();

  ExchangeTable(const ExchangeTable&) = delete;
  ExchangeTable& operator=(const ExchangeTable&) = delete;

  absl::StatusOr<PreparedExchange*> Prepare(const ExchangeSpec& spec);
  void Release(PreparedExchange* exchange);
  absl::Status Post(PreparedExchange* exchange, Step step, absl::Time now);
  void Cancel(PreparedExchange* exchange);

  // Messages of `from`, whose identity and header are verified.
  void OnCredit(Peer* from, const MessageHeader& header);
  void OnOffer(Peer* from, const MessageHeader& header);
  void OnChunk(Peer* from, const MessageHeader& header,
               std::span<const std::byte> payload, bool is_intact);
  void OnResend(Peer* from, const MessageHeader& header);
  void OnDone(Peer* from, const MessageHeader& header);

  // The next credit or offer for `to`.
  std::optional<MessageHeader> NextControl(Peer* to);
  // Writes the next chunk for `to` into `slot` (of at least a chunk), returns
  // its header.
  std::optional<MessageHeader> NextChunk(Peer* to, std::span<std::byte> slot);

  void OnPeerFailed(const Peer& peer);
  // A new life of the peer knows nothing of what was said.
  void ForgetPeer(NodeRank node);
  // The same life says hello again: repeats what it may have missed.
  void RepeatControl(Peer* peer);
  void ExpireDeadlines(absl::Time now);

  bool has_completions() const { return !completions_.empty(); }
  std::vector<Completion> TakeCompletions() {
    return std::exchange(completions_, {});
  }

 private:
  using Key = std::tuple<uint64_t, int64_t, uint32_t, int32_t>;

  absl::Status Check(const ExchangeSpec& spec) const;
  Peer* FindPeer(NodeRank node) const;
  Part* FindPart(const Peer& peer, const MessageHeader& header, bool is_send);
  // Also of the posted step and the right Posts; otherwise counts.
  Part* FindPosted(const Peer& peer, const MessageHeader& header, bool is_send);
  MessageHeader HeaderOf(const Part& part, MessageKind kind) const;
  void Reply(Peer* to, const Part& part, MessageKind kind, uint32_t argument);
  bool TryStart(Part* send);
  void FinishPart(Part* part);
  void Finish(PreparedExchange* exchange, absl::Status status);
  void LeaveQueues(PreparedExchange* exchange);
  void FailReceive(Peer* from, Part* part, absl::Status status);
  absl::Status Missing(const PreparedExchange& exchange) const;

  const Options options_;
  const NodeRank self_;
  Peers* const peers_;
  ProtocolStats* const stats_;
  uint64_t next_id_ = 1;
  uint64_t next_post_ = 1;
  absl::flat_hash_map<Key, std::unique_ptr<PreparedExchange>> exchanges_;
  std::vector<Completion> completions_;
};

// 2^24 chunks: the sets of chunks stay small, their indexes in 32 bits.
inline uint64_t MaxPartBytes(const ExchangeTable::Options& options) {
  return uint64_t{options.chunk_bytes} << 24;
}

// "bucket 3, step 7" and what else names an exchange in an error.
std::string Describe(const PreparedExchange& exchange);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_EXCHANGE_TABLE_H_
