// The worker's gRPC connection over the descriptor that the handle socket
// gave it: attach, begin, stats, detach, close. Never on the step path.
//
// Threading: thread-compatible; gRPC brings its own threads.
#ifndef CLIENT_WORKER_CONTROL_CHANNEL_H_
#define CLIENT_WORKER_CONTROL_CHANNEL_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/worker.grpc.pb.h"
#include "server/base/unique_fd.h"

namespace ballast::worker {

// Asked every 100 ms or so, on the calling thread, while a call waits; true
// makes the call return Cancelled. Empty: never.
using Interrupted = std::function<bool()>;

class ControlChannel {
 public:
  // `fd` is a connected stream socket; `key_hex` goes with every call.
  static absl::StatusOr<std::unique_ptr<ControlChannel>> Create(
      base::UniqueFd fd, std::string key_hex);

  // Errors are the daemon's, with its text; Unavailable if it went away,
  // DeadlineExceeded after `timeout`.
  absl::StatusOr<v1::AttachReply> Attach(const v1::AttachRequest& request,
                                         absl::Duration timeout,
                                         const Interrupted& interrupted);
  absl::StatusOr<v1::BeginReply> Begin(absl::Duration timeout,
                                       const Interrupted& interrupted);
  absl::StatusOr<v1::GetStatsReply> GetStats(absl::Duration timeout);
  // Answered when the snapshot is durable.
  absl::StatusOr<v1::SaveReply> Save(const v1::SaveRequest& request,
                                     absl::Duration timeout,
                                     const Interrupted& interrupted);
  absl::Status Detach(absl::Duration timeout);
  absl::Status Close(absl::Duration timeout);

  // Whether `error` is nobody's word, since whoever had the other end has gone.
  // A daemon that ends cancels its calls a moment before: waits a second.
  bool IsBroken(const absl::Status& error) const;

 private:
  ControlChannel() = default;

  base::UniqueFd socket_;  // of the same connection as the stub's
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::string key_hex_;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_CONTROL_CHANNEL_H_
