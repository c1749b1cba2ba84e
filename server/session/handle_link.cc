#include "server/session/handle_link.h"

#include <utility>

#include "server/base/hex.h"
#include "server/base/segment.h"
#include "server/base/status_macros.h"
#include "server/base/unique_fd.h"

namespace ballast::session {

namespace {

// For the answer to a call that waited while its job ended.
constexpr absl::Duration kLastAnswer = absl::Seconds(1);

}  // namespace

HandleLink::HandleLink(std::unique_ptr<ipc::WorkerLink> link,
                       Incarnation incarnation, Sessions* sessions,
                       EndControl end)
    : identity_{link->peer().pid, link->peer().uid, incarnation},
      key_(base::ToHex(link->key().bytes)),
      sessions_(sessions),
      link_(std::move(link)),
      end_(std::move(end)) {}

HandleLink::~HandleLink() {
  // A worker that was never in a job, or is gone, waits for no answer.
  const bool is_owed = has_segments_ && !is_lost_;
  std::move(end_)(is_owed ? kLastAnswer : absl::ZeroDuration());
}

void HandleLink::Connect(std::unique_ptr<ipc::WorkerLink> link,
                         Incarnation incarnation, Sessions* sessions,
                         EndControl end) {
  auto owned = std::unique_ptr<HandleLink>(
      new HandleLink(std::move(link), incarnation, sessions, std::move(end)));
  HandleLink* const self = owned.get();
  self->connection_ = sessions->OnConnected(self->key_, std::move(owned));
  self->link_->Start(self);
}

absl::Status HandleLink::SendSegment(proto::SegmentKind kind,
                                     const device::SharedBuffer& buffer) {
  const base::Access access = kind == proto::SegmentKind::kWeights
                                  ? base::Access::kReadOnly
                                  : base::Access::kReadWrite;
  ASSIGN_OR_RETURN(const base::UniqueFd fd, buffer.Export(access));
  has_segments_ = true;
  return link_->SendSegment(kind, fd.get(), buffer.size_bytes());
}

void HandleLink::Close(const absl::Status&) { link_->Close(); }

void HandleLink::OnDoorbell(ipc::WorkerLink*) {
  sessions_->OnDoorbell(connection_);
}

void HandleLink::OnLost(ipc::WorkerLink*, const absl::Status& reason) {
  is_lost_ = true;
  const Sessions::Key key = key_;  // this may be deleted meanwhile
  sessions_->OnDisconnected(key, reason);
}

}  // namespace ballast::session
