// Moves byte ranges between the nodes of a job as prepared, repeatable
// exchanges: prepared once per generation, posted once per step, completed on
// the control thread.
//
//   ASSIGN_OR_RETURN(auto exchange, transport->Prepare(spec, observer));
//   RETURN_IF_ERROR(exchange->Post(step));     // … OnExchangeDone(step, OK)
//
// Matching: a send meets the receive of the same job, generation, phase,
// bucket and step, between the same two nodes; bytes of another generation or
// step are never delivered (the fence). Nodes may post in any order.
// Unmatched parts wait: deadlines are the caller's (Cancel).
//
// Threading: control thread only, observers too.
#ifndef SERVER_TRANSPORT_TRANSPORT_H_
#define SERVER_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"

namespace ballast::transport {

struct Capabilities {
  std::string name;   // "inproc"
  bool is_encrypted;  // on the wire
  bool moves_device_bytes;
  uint64_t max_part_bytes;
};

// At most one send and one receive per peer; a peer is never oneself. Empty
// parts are allowed and still synchronise.
struct SendPart {
  NodeRank to;
  std::span<const std::byte> bytes;
};
struct ReceivePart {
  NodeRank from;
  std::span<std::byte> bytes;
};

// What the parts of all nodes are together, for who may forward them
// (routed/routed_transport.h); backends need not know.
enum class Pattern : uint8_t {
  kParts,    // parts of their own
  kGather,   // every node has the same bytes for all others
  kDeliver,  // every node has other bytes for each of the others
};

// In phases: the upper byte has the round of an exchange that takes several.
inline constexpr int kRoundShift = 24;

// The memory stays valid until the exchange is released; between Post and
// completion (or Cancel) the sends are not written, the receives not touched.
struct ExchangeSpec {
  uint64_t job = 0;  // equal on all nodes of the job, distinct between jobs
  Generation generation = {};
  uint32_t phase = 0;
  BucketId bucket = {};
  std::vector<SendPart> sends = {};
  std::vector<ReceivePart> receives = {};

  // Not of kParts: a part's size, the same number on all nodes; by it they
  // choose, each alone, the same algorithm.
  Pattern pattern = Pattern::kParts;
  uint64_t typical_part_bytes = 0;
  // kDeliver: the size of the part that `from` has for `to`, right for any two
  // nodes. Parts of no bytes are left out on both sides.
  std::function<uint64_t(NodeRank from, NodeRank to)> part_bytes = nullptr;
  // Not of kParts: who takes part, this node among them, the same list on all
  // of them; empty: all nodes of the job.
  std::vector<NodeRank> nodes = {};
  // Exchanges of one job, generation and phase that have the same turn are
  // never posted at the same time, so that they may share memory.
  std::optional<int> turn = std::nullopt;
};

// Payload: the parts' bytes. Wire: with headers and repetitions. Of one
// exchange, since it was prepared.
struct ByteCounters {
  uint64_t payload_sent = 0;
  uint64_t payload_received = 0;
  uint64_t wire_sent = 0;
  uint64_t wire_received = 0;
};

class Exchange;

class ExchangeObserver {
 public:
  virtual ~ExchangeObserver() = default;

  // All parts of the posted step are done, or one failed and the others were
  // given up: Unavailable, the peer is gone; DataLoss, the peer's part has
  // another size. Once per Post, never from inside Post, never after Cancel.
  // May Post again, or release the exchange.
  virtual void OnExchangeDone(Exchange* exchange, Step step,
                              const absl::Status& status) = 0;
};

class Exchange {
 public:
  // Releasing cancels; it does not wait.
  virtual ~Exchange() = default;

  // FailedPrecondition while a step is posted.
  virtual absl::Status Post(Step step) = 0;

  // Gives up the posted step, if any. Once it returns, no byte of the
  // exchange's memory is read or written; it may be posted again.
  virtual void Cancel() = 0;

  virtual bool is_posted() const = 0;
  virtual const ByteCounters& counters() const = 0;
};

class Transport {
 public:
  // Its exchanges must be released before.
  virtual ~Transport() = default;

  virtual const Capabilities& capabilities() const = 0;
  virtual NodeRank self() const = 0;

  // InvalidArgument: a part to oneself, two parts for one peer, a part beyond
  // max_part_bytes. AlreadyExists: an exchange of this identity is prepared.
  // `observer` outlives the exchange.
  virtual absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const ExchangeSpec& spec, ExchangeObserver* observer) = 0;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_TRANSPORT_H_
