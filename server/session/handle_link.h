// A worker's connection for the session, over its handle socket.
//
// Threading: control thread only. Owns the ipc link.
#ifndef SERVER_SESSION_HANDLE_LINK_H_
#define SERVER_SESSION_HANDLE_LINK_H_

#include <memory>

#include "absl/status/status.h"
#include "server/ipc/worker_link.h"
#include "server/session/session.h"

namespace ballast::session {

class HandleLink final : public WorkerLink {
 public:
  HandleLink(std::unique_ptr<ipc::WorkerLink> link, Incarnation incarnation);

  const WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind kind,
                           const device::SharedBuffer& buffer) override;
  void OnWake() override {}
  void Close(const absl::Status& why) override;

 private:
  const std::unique_ptr<ipc::WorkerLink> link_;
  const WorkerIdentity identity_;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_HANDLE_LINK_H_
