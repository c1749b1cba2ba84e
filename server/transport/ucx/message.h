// What nodes send one another: one header, for some kinds with a payload.
//
//   |<------- 112 bytes ------->|<- payload_bytes ->|
//   | MessageHeader             | chunk or frame    |
//
// Little-endian, as in memory. Checksums are XXH3-64 seeded with a number
// that all nodes of a job share: they find faults of hardware and software,
// and messages of another cluster, not a deliberate forger.
//
//   receiver                              sender
//   Post(step) ── credit(step, post R) ──▶ Post(step)? then, chunk by chunk:
//              ◀── chunk(R, post S) ─────
//              ── resend(chunk) ─────────▶ if its checksum was wrong
//              ── done(R, S, code) ──────▶ complete
//
// A sender that posts without a credit says `offer`; the receiver, if posted,
// repeats its credit. So nothing is ever sent that no receive waits for.
#ifndef SERVER_TRANSPORT_UCX_MESSAGE_H_
#define SERVER_TRANSPORT_UCX_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ballast::transport {

enum class MessageKind : uint16_t {
  kHello = 1,  // argument: 1 asks for a hello back
  kPing = 2,
  kPong = 3,
  kFrame = 4,   // payload: a frame of the peer link
  kCredit = 5,  // the receive is posted
  kOffer = 6,   // the send is posted
  kChunk = 7,   // argument: index of the chunk; payload: its bytes
  kResend = 8,  // argument: index of the chunk
  kDone = 9,    // argument: absl::StatusCode of the receive
};
inline constexpr uint16_t kMaxMessageKind = 9;

struct MessageHeader {
  uint32_t magic = 0;
  uint16_t version = 0;
  uint16_t kind = 0;
  uint64_t sender_incarnation = 0;
  uint64_t receiver_incarnation = 0;
  // Identity of the exchange.
  uint64_t job = 0;
  int64_t generation = 0;
  int64_t step = 0;
  int32_t bucket = 0;
  uint32_t phase = 0;
  int32_t sender = 0;  // node rank
  uint32_t argument = 0;
  // Which Post of each side this belongs to.
  uint64_t sender_post = 0;  // of the side that sends the part
  uint64_t receiver_post = 0;
  uint64_t part_bytes = 0;
  uint32_t chunk_bytes = 0;  // the size into which the sender cuts
  uint32_t payload_bytes = 0;
  uint64_t payload_checksum = 0;
  uint64_t header_checksum = 0;  // of all bytes before
};
inline constexpr size_t kHeaderBytes = 112;
static_assert(sizeof(MessageHeader) == kHeaderBytes);
static_assert(std::is_trivially_copyable_v<MessageHeader>);

uint64_t PayloadChecksum(std::span<const std::byte> payload, uint64_t seed);

// Fills in magic, version and the header's checksum and writes the header to
// the first kHeaderBytes of `to`.
void EncodeHeader(MessageHeader header, uint64_t seed, std::span<std::byte> to);

// The header of a received message, its own checksum verified. DataLoss says
// what is wrong. The payload's checksum is left to the caller.
absl::StatusOr<MessageHeader> DecodeHeader(std::span<const std::byte> message,
                                           uint64_t seed);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_MESSAGE_H_
