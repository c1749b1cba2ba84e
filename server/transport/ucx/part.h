// One direction of a prepared exchange with one peer, and the exchange around
// it, as ExchangeTable keeps them.
#ifndef SERVER_TRANSPORT_UCX_PART_H_
#define SERVER_TRANSPORT_UCX_PART_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/chunk_set.h"
#include "server/transport/ucx/part_queue.h"

namespace ballast::transport {

struct PreparedExchange;

struct Part {
  Part(PreparedExchange* owner, NodeRank peer, bool is_send,
       uint32_t num_chunks)
      : owner(owner),
        peer(peer),
        is_send(is_send),
        num_chunks(num_chunks),
        received(is_send ? 0 : num_chunks),
        repeats(num_chunks) {}

  PreparedExchange* owner;
  NodeRank peer;
  bool is_send;
  uint32_t num_chunks;
  // One of the two, by direction.
  std::span<const std::byte> source;
  std::span<std::byte> target;
  bool is_done = false;

  // Of the peer: the Post whose credit this send answers, or that the bytes
  // of this receive come from. 0: none yet.
  uint64_t peer_post = 0;
  // Sends: the newest credit, which may be for a step not posted here yet.
  uint64_t credit_post = 0;
  int64_t credit_step = 0;
  uint64_t credit_bytes = 0;

  ChunkSet received;        // receives: the chunks that are in
  uint32_t next_chunk = 0;  // sends: all before it were handed over
  // Receives: chunks asked for again. Sends: chunks to hand over again.
  ChunkSet repeats;

  PartLink<Part> control;  // owes its peer a credit or an offer
  PartLink<Part> data;     // has chunks to send

  uint64_t size() const { return is_send ? source.size() : target.size(); }
};

struct PreparedExchange {
  uint64_t id = 0;
  ExchangeSpec spec;
  std::vector<Part> parts;  // never resized: parts are in queues
  ByteCounters counters;

  bool is_posted = false;  // and not finished
  uint64_t post = 0;       // of all exchanges, so a released one's never fits
  Step step;
  size_t num_open = 0;
  absl::Time deadline = absl::InfiniteFuture();
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_PART_H_
