// Messages of the keeper's socket (proto/keeper_socket.h) as values.
//
// Threading: pure functions.
#ifndef SERVER_IPC_KEEPER_MESSAGE_H_
#define SERVER_IPC_KEEPER_MESSAGE_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/keeper_socket.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/ipc/fd_passing.h"

namespace ballast::ipc {

inline constexpr size_t kMaxKeeperMessageBytes = sizeof(proto::KeeperHeader) +
                                                 base::kMaxKeptNameBytes +
                                                 base::kMaxKeptNoteBytes;

struct KeeperMessage {
  proto::KeeperMessageKind kind;
  int code = 0;
  std::string name;
  std::string note;
  // Of kRefusal; of kPut: this process has no room for its descriptors.
  absl::Status refusal;
  std::vector<base::UniqueFd> fds;
};

// InvalidArgument beyond the bounds of base/vault.h.
absl::Status CheckKept(std::string_view name, std::string_view note,
                       size_t num_fds);

std::vector<std::byte> ToBytes(proto::KeeperMessageKind kind,
                               std::string_view name = "",
                               std::string_view note = "", int code = 0);
std::vector<std::byte> RefusalBytes(std::string_view name,
                                    const absl::Status& why);

// `bytes` is what of the packet was received. InvalidArgument says what is
// wrong with it; its descriptors are closed then.
absl::StatusOr<KeeperMessage> ParseKeeperMessage(
    std::span<const std::byte> bytes, Packet packet);

}  // namespace ballast::ipc

#endif  // SERVER_IPC_KEEPER_MESSAGE_H_
