#include "server/session/handle_link.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "server/base/hex.h"
#include "server/base/segment.h"
#include "server/base/status_macros.h"
#include "server/base/unique_fd.h"

namespace ballast::session {

namespace {

// For the answer to a call that waited while its job ended.
constexpr absl::Duration kLastAnswer = absl::Seconds(1);

constexpr uint64_t kMagic = 0x314b5257'4c4c4142;  // BALLWRK1

// Native byte order; other versions have another magic.
struct Note {
  uint64_t magic;
  int32_t pid;
  uint32_t uid;
  uint32_t gid;
  uint32_t reserved;
  uint64_t incarnation;
  std::array<uint8_t, 16> key;
};

}  // namespace

std::string KeptWorker::ToNote() const {
  const Note note = {.magic = kMagic,
                     .pid = peer.pid,
                     .uid = peer.uid,
                     .gid = peer.gid,
                     .reserved = 0,
                     .incarnation = incarnation.value(),
                     .key = key.bytes};
  return std::string(reinterpret_cast<const char*>(&note), sizeof(note));
}

absl::StatusOr<KeptWorker> KeptWorker::FromNote(std::string_view text) {
  Note note{};
  if (text.size() == sizeof(note)) {
    std::memcpy(&note, text.data(), sizeof(note));
  }
  if (note.magic != kMagic) {
    return absl::DataLossError(
        "what was kept of a worker is of no format "
        "that this version knows");
  }
  return KeptWorker{.peer = {note.pid, note.uid, note.gid},
                    .key = {note.key},
                    .incarnation = Incarnation(note.incarnation)};
}

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

absl::Status HandleLink::Keep(base::Vault* vault, std::string_view name) const {
  const KeptWorker worker = {link_->peer(), link_->key(),
                             identity_.incarnation};
  return vault->Put(name, worker.ToNote(), link_->fds());
}

ipc::ProcessState HandleLink::process_state() const {
  // Handle socket and pidfd; none after the end.
  const std::vector<int> fds = link_->fds();
  if (fds.size() < 2) return ipc::ProcessState::kUnknown;
  return ipc::ReadProcessState(fds[1], link_->peer().pid);
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
