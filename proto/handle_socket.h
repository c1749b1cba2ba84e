// The handle socket: a path-named SOCK_SEQPACKET Unix socket, one packet per
// message, that carries identity, file descriptors and doorbells.
//
//   worker                                    daemon
//   Hello {version, token} + [pidfd]     ->   checks SO_PEERCRED, token, pidfd
//                                        <-   Welcome {key} + [control fd]
//                                             or Refusal {code, text}, closes
//   (gRPC over the control fd: Attach)
//                                        <-   Segment {kind, …} + [fd], once
//                                             per segment, before the reply
//   Doorbell (1 byte)                    ->   "look at my control block"
//
// The daemon makes the control fd itself (one end of a socketpair) and keeps
// the other: no unauthenticated byte reaches HTTP/2, and no worker can change
// the blocking mode of a description that the daemon reads. Every gRPC call
// carries `key` (hex) in metadata kKeyMetadata; the key is the identity.
//
// The lease ends when the socket closes or the pidfd fires.
#ifndef PROTO_HANDLE_SOCKET_H_
#define PROTO_HANDLE_SOCKET_H_

#include <cstdint>

namespace ballast::proto {

inline constexpr uint32_t kHandleMagic = 0x54534c42;  // "BLST"
inline constexpr uint32_t kHandleVersion = 1;
inline constexpr uint32_t kMaxTokenBytes = 4096;
inline constexpr uint32_t kMaxTextBytes = 1024;
inline constexpr char kKeyMetadata[] = "ballast-key";
inline constexpr uint8_t kDoorbell = 1;

enum class HandleMessageKind : uint32_t {
  kHello = 1,
  kWelcome = 2,
  kRefusal = 3,
  kSegment = 4,
};

enum class SegmentKind : uint32_t {
  kControlBlock = 1,  // read-write
  kGradients = 2,     // read-write; this rank's own
  kWeights = 3,       // read-only; the node's published weights
  kInitial = 4,       // read-write; rank 0 only, until Begin
};

struct HandleHeader {
  uint32_t magic;
  HandleMessageKind kind;
};

struct HelloMessage {  // + SCM_RIGHTS: pidfd of the sender
  HandleHeader header;
  uint32_t version;
  uint32_t token_bytes;  // <= kMaxTokenBytes, follows
};

struct WelcomeMessage {  // + SCM_RIGHTS: stream socket for gRPC
  HandleHeader header;
  uint32_t version;
  uint32_t reserved;
  uint8_t key[16];
};

struct RefusalMessage {
  HandleHeader header;
  int32_t code;         // absl::StatusCode
  uint32_t text_bytes;  // <= kMaxTextBytes, follows
};

struct SegmentMessage {  // + SCM_RIGHTS: the segment
  HandleHeader header;
  SegmentKind segment;
  uint32_t reserved;
  uint64_t size_bytes;
};

}  // namespace ballast::proto

#endif  // PROTO_HANDLE_SOCKET_H_
