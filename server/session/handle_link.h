// A worker's connection for the sessions, over its handle socket: hands out
// segments one way, doorbells and the end the other.
//
//   HandleLink::Connect(std::move(ipc_link), incarnation, &sessions);
//
// Threading: control thread only. Owns the ipc link; the sessions own this.
#ifndef SERVER_SESSION_HANDLE_LINK_H_
#define SERVER_SESSION_HANDLE_LINK_H_

#include <memory>

#include "absl/status/status.h"
#include "server/ipc/worker_link.h"
#include "server/session/session.h"
#include "server/session/sessions.h"

namespace ballast::session {

class HandleLink final : public WorkerLink, public ipc::WorkerLinkObserver {
 public:
  // Introduces the worker to the sessions, which keep the link.
  static void Connect(std::unique_ptr<ipc::WorkerLink> link,
                      Incarnation incarnation, Sessions* sessions);

  const WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind kind,
                           const device::SharedBuffer& buffer) override;
  void OnWake() override {}
  void Close(const absl::Status& why) override;
  // ipc::WorkerLinkObserver
  void OnDoorbell(ipc::WorkerLink* link) override;
  void OnLost(ipc::WorkerLink* link, const absl::Status& reason) override;

 private:
  HandleLink(std::unique_ptr<ipc::WorkerLink> link, Incarnation incarnation,
             Sessions* sessions);

  const WorkerIdentity identity_;
  const Sessions::Key key_;
  Sessions* const sessions_;
  Sessions::Connection* connection_ = nullptr;
  const std::unique_ptr<ipc::WorkerLink> link_;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_HANDLE_LINK_H_
