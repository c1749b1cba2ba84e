// The segments that an attach reply announces: received over the handle socket
// in whatever order they come, checked and mapped.
//
//   SegmentReceiver receiver(reply);
//   RETURN_IF_ERROR(receiver.ReceiveAll(handle));
//   base::Segment weights = receiver.Take(proto::SegmentKind::kWeights);
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_SEGMENT_RECEIVER_H_
#define CLIENT_WORKER_SEGMENT_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/handle_socket.h"
#include "proto/worker.pb.h"
#include "server/base/segment.h"
#include "server/ipc/handle_client.h"

namespace ballast::worker {

class SegmentReceiver {
 public:
  explicit SegmentReceiver(const v1::AttachReply& reply);

  // Blocks, each segment for ten seconds at most. DataLoss: what comes was not
  // announced, or is not as large; Unavailable: the daemon went away.
  absl::Status ReceiveAll(ipc::HandleClient& handle);

  // Weights are mapped read-only. Empty if none was announced.
  base::Segment Take(proto::SegmentKind kind);

 private:
  struct Expected {
    proto::SegmentKind kind;
    uint64_t size_bytes;  // 0: any
    base::Segment segment;
  };

  void Expect(proto::SegmentKind kind, uint64_t size_bytes);
  absl::Status Place(ipc::HandleClient::ReceivedSegment received);

  std::vector<Expected> expected_;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_SEGMENT_RECEIVER_H_
