// The keeper's socket: a path-named SOCK_SEQPACKET Unix socket, one packet per
// message: a header, the name, the note (or a refusal's text), and descriptors.
//
//   daemon                          keeper
//   List                       ->   what an earlier daemon left:
//                              <-   Item {name, note} + [fds], for each
//                              <-   ListEnd {code: kKeeperKnowsSync}
//   Reset {code: kResetMarks}  ->   marks all of it; without the code, as
//                                   older daemons say it, forgets it at once
//                              <-   Marked
//   Put {name, note} + [fds]   ->   kept, in place of what had the name
//   Remove {name}              ->
//                              <-   Refusal {code, text}; of a Put {name}:
//                                   the connection goes on, and what had the
//                                   name stays
//   Sync                       ->   forgets what is marked and not put since
//                              <-   Synced: all before was taken or refused
//
// What a daemon gives a keeper that it lost and found again takes the place of
// what is there, name by name: should it die meanwhile, nothing is missing. Of
// older keepers neither Marked nor kKeeperKnowsSync comes, and no Sync is sent.
//
// One daemon at a time, of the keeper's own user.
#ifndef PROTO_KEEPER_SOCKET_H_
#define PROTO_KEEPER_SOCKET_H_

#include <cstdint>

namespace ballast::proto {

inline constexpr uint32_t kKeeperMagic = 0x5250454b;  // "KEPR"
inline constexpr uint32_t kKeeperVersion = 1;

enum class KeeperMessageKind : uint32_t {
  kList = 1,
  kReset = 2,
  kPut = 3,
  kRemove = 4,
  kItem = 5,
  kListEnd = 6,
  kRefusal = 7,
  kSync = 8,
  kMarked = 9,
  kSynced = 10,
};

inline constexpr int32_t kKeeperKnowsSync = 1;
inline constexpr int32_t kResetMarks = 1;

struct KeeperHeader {
  uint32_t magic;
  uint32_t version;
  KeeperMessageKind kind;
  int32_t code;         // of a refusal: absl::StatusCode; others as above
  uint32_t name_bytes;  // follow
  uint32_t note_bytes;  // follow the name
};

}  // namespace ballast::proto

#endif  // PROTO_KEEPER_SOCKET_H_
