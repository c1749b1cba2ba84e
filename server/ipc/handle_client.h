// The worker's side of the handle socket.
//
//   ASSIGN_OR_RETURN(auto client, HandleClient::Connect(path, token, limit));
//   UniqueFd control = client->TakeControlFd();       // for gRPC
//   … Attach …
//   ASSIGN_OR_RETURN(auto segment, client->ReceiveSegment(limit));
//   client->RingDoorbell();
//
// Threading: one thread connects and receives; RingDoorbell and IsOpen from
// any. Blocks at most the given time. Errors: what the daemon refused with;
// Unavailable if there is no daemon or it went away; DeadlineExceeded.
#ifndef SERVER_IPC_HANDLE_CLIENT_H_
#define SERVER_IPC_HANDLE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/handle_socket.h"
#include "server/base/unique_fd.h"
#include "server/ipc/worker_link.h"

namespace ballast::ipc {

class HandleClient {
 public:
  struct ReceivedSegment {
    proto::SegmentKind kind;
    uint64_t size_bytes;
    base::UniqueFd fd;
  };

  // Connects once (the caller retries while it is Unavailable), shows `token`
  // and waits for the daemon's answer.
  static absl::StatusOr<std::unique_ptr<HandleClient>> Connect(
      const std::string& path, std::string_view token, absl::Duration timeout);

  const ConnectionKey& key() const { return key_; }
  base::UniqueFd TakeControlFd() { return std::move(control_fd_); }

  absl::StatusOr<ReceivedSegment> ReceiveSegment(absl::Duration timeout);

  // Another life of the daemon that takes this connection over sends a new
  // control descriptor: TakeControlFd then has the last one that came.
  // DeadlineExceeded if none does; Unavailable if nobody has the other end.
  absl::Status AwaitControl(absl::Duration timeout);

  // "Look at my control block." Never blocks; a daemon that has unread
  // doorbells needs no other. Unavailable if the daemon is gone.
  absl::Status RingDoorbell();

  // False once the daemon closed its side (or died).
  bool IsOpen() const;

  // For a forked child: closes nothing of the parent's but this copy.
  int fd() const { return socket_.get(); }

 private:
  explicit HandleClient(base::UniqueFd socket) : socket_(std::move(socket)) {}

  absl::Status SendHello(std::string_view token, absl::Time deadline);
  absl::Status ReceiveWelcome(absl::Time deadline);

  base::UniqueFd socket_;
  base::UniqueFd control_fd_;
  ConnectionKey key_;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_HANDLE_CLIENT_H_
