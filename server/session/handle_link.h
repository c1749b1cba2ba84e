// A worker's connection for the sessions, over its handle socket: hands out
// segments one way, doorbells and the end the other.
//
//   HandleLink::Connect(std::move(ipc_link), incarnation, &sessions, end);
//
// Threading: control thread only. Owns the ipc link; the sessions own this.
#ifndef SERVER_SESSION_HANDLE_LINK_H_
#define SERVER_SESSION_HANDLE_LINK_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/ipc/process_state.h"
#include "server/ipc/worker_link.h"
#include "server/session/session.h"
#include "server/session/sessions.h"

namespace ballast::session {

// What a vault's note says of a worker whose handle socket and pidfd it keeps.
struct KeptWorker {
  ipc::PeerIdentity peer;
  ipc::ConnectionKey key;
  Incarnation incarnation;

  std::string ToNote() const;
  // DataLoss if it is none, or one of another version.
  static absl::StatusOr<KeptWorker> FromNote(std::string_view note);
};

class HandleLink final : public WorkerLink, public ipc::WorkerLinkObserver {
 public:
  // The lease is over: nothing more may come in by the connection that gRPC
  // has of this worker. Within `grace` the last answer may still go out.
  using EndControl = absl::AnyInvocable<void(absl::Duration grace) &&>;

  // Introduces the worker to the sessions, which keep the link. `end` is
  // called once, when they let go of it.
  static void Connect(std::unique_ptr<ipc::WorkerLink> link,
                      Incarnation incarnation, Sessions* sessions,
                      EndControl end);
  ~HandleLink() override;

  const WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind kind,
                           const device::SharedBuffer& buffer) override;
  void OnWake() override {}
  absl::Status Keep(base::Vault* vault, std::string_view name) const override;
  ipc::ProcessState process_state() const override;
  void Close(const absl::Status& why) override;
  // ipc::WorkerLinkObserver
  void OnDoorbell(ipc::WorkerLink* link) override;
  void OnLost(ipc::WorkerLink* link, const absl::Status& reason) override;

 private:
  HandleLink(std::unique_ptr<ipc::WorkerLink> link, Incarnation incarnation,
             Sessions* sessions, EndControl end);

  const WorkerIdentity identity_;
  const Sessions::Key key_;
  Sessions* const sessions_;
  Sessions::Connection* connection_ = nullptr;
  const std::unique_ptr<ipc::WorkerLink> link_;
  EndControl end_;
  bool has_segments_ = false;
  bool is_lost_ = false;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_HANDLE_LINK_H_
