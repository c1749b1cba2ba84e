#include "client/worker/segment_receiver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/status_macros.h"

namespace ballast::worker {
namespace {

constexpr absl::Duration kSegmentLimit = absl::Seconds(10);

}  // namespace

SegmentReceiver::SegmentReceiver(const v1::AttachReply& reply) {
  Expect(proto::SegmentKind::kControlBlock, 0);
  Expect(proto::SegmentKind::kGradients, reply.gradients_bytes());
  Expect(proto::SegmentKind::kWeights, reply.weights_bytes());
  Expect(proto::SegmentKind::kInitial, reply.initial_bytes());
}

absl::Status SegmentReceiver::ReceiveAll(ipc::HandleClient& handle) {
  for (size_t i = 0; i < expected_.size(); ++i) {
    ASSIGN_OR_RETURN(auto received, handle.ReceiveSegment(kSegmentLimit));
    RETURN_IF_ERROR(Place(std::move(received)));
  }
  return absl::OkStatus();
}

base::Segment SegmentReceiver::Take(proto::SegmentKind kind) {
  for (Expected& expected : expected_) {
    if (expected.kind == kind) return std::move(expected.segment);
  }
  return base::Segment();
}

void SegmentReceiver::Expect(proto::SegmentKind kind, uint64_t size_bytes) {
  const bool is_control = kind == proto::SegmentKind::kControlBlock;
  if (is_control || size_bytes > 0) {
    expected_.push_back({kind, size_bytes, base::Segment()});
  }
}

absl::Status SegmentReceiver::Place(
    ipc::HandleClient::ReceivedSegment received) {
  for (Expected& expected : expected_) {
    if (expected.kind != received.kind) continue;
    const bool fits =
        expected.size_bytes == 0 || expected.size_bytes == received.size_bytes;
    if (!fits || expected.segment.size_bytes() > 0) break;
    const base::Access access = received.kind == proto::SegmentKind::kWeights
                                    ? base::Access::kReadOnly
                                    : base::Access::kReadWrite;
    // Checks fd, seals and true size before it maps.
    ASSIGN_OR_RETURN(expected.segment,
                     base::Segment::Map(std::move(received.fd),
                                        received.size_bytes, access));
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("the daemon sent a segment that was not announced: kind ",
                   static_cast<uint32_t>(received.kind), ", ",
                   received.size_bytes, " bytes"));
}

}  // namespace ballast::worker
