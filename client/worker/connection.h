// Finds the daemon: one handle socket and the gRPC channel that came with it.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_CONNECTION_H_
#define CLIENT_WORKER_CONNECTION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/worker/control_channel.h"
#include "server/ipc/handle_client.h"

namespace ballast::worker {

struct Connection {
  std::unique_ptr<ipc::HandleClient> handle;
  std::unique_ptr<ControlChannel> channel;
};

// InvalidArgument unless `address` names a socket path (108 bytes at most).
absl::StatusOr<std::string> SocketPath(std::string_view address);

// Tries until `timeout` while nobody answers (jittered pauses, doubling from
// 50 ms to 2 s); the error then says what was tried. A refusal is returned at
// once.
absl::StatusOr<Connection> Connect(const std::string& address,
                                   std::string_view token,
                                   absl::Duration timeout,
                                   const Interrupted& interrupted);

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_CONNECTION_H_
