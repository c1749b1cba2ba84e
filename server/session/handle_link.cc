#include "server/session/handle_link.h"

#include <utility>

#include "server/base/segment.h"
#include "server/base/status_macros.h"
#include "server/base/unique_fd.h"

namespace ballast::session {

HandleLink::HandleLink(std::unique_ptr<ipc::WorkerLink> link,
                       Incarnation incarnation)
    : link_(std::move(link)),
      identity_{link_->peer().pid, link_->peer().uid, incarnation} {}

absl::Status HandleLink::SendSegment(proto::SegmentKind kind,
                                     const device::SharedBuffer& buffer) {
  const base::Access access = kind == proto::SegmentKind::kWeights
                                  ? base::Access::kReadOnly
                                  : base::Access::kReadWrite;
  ASSIGN_OR_RETURN(const base::UniqueFd fd, buffer.Export(access));
  return link_->SendSegment(kind, fd.get(), buffer.size_bytes());
}

void HandleLink::Close(const absl::Status&) { link_->Close(); }

}  // namespace ballast::session
