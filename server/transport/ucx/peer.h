// What the protocol knows of one peer.
#ifndef SERVER_TRANSPORT_UCX_PEER_H_
#define SERVER_TRANSPORT_UCX_PEER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/transport/transport.h"
#include "server/transport/ucx/message.h"
#include "server/transport/ucx/part.h"

namespace ballast::transport {

//   Connect ─▶ kConnecting ─ its hello ─▶ kReady
//                   └── no answer, silence, broken link ──▶ kFailed
// Only another Connect leads out of kFailed.
struct Peer {
  enum class State { kConnecting, kReady, kFailed };

  NodeRank node;
  Incarnation incarnation;
  uint64_t connection = 0;  // which Connect made it
  State state = State::kConnecting;
  absl::Status failure;

  absl::Time last_heard;  // kConnecting: since Connect
  absl::Time last_ping;

  // What to say next, in this order; all but the hello only when ready.
  bool is_hello_due = false;
  bool hello_asks = false;
  bool is_ping_due = false;
  bool is_pong_due = false;
  std::deque<MessageHeader> replies;
  PartQueue<Part, &Part::control> control;
  std::deque<std::string> frames;  // with headers
  size_t frame_bytes = 0;
  PartQueue<Part, &Part::data> data;

  ByteCounters counters;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_PEER_H_
