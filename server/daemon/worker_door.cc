#include "server/daemon/worker_door.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/handle_socket.h"
#include "server/base/hex.h"
#include "server/base/status_macros.h"
#include "server/daemon/log.h"
#include "server/ipc/handle_connection.h"
#include "server/ipc/token.h"
#include "server/session/handle_link.h"

namespace ballast::daemon {
namespace {

constexpr std::string_view kUnixPrefix = "unix://";

void HangUp(base::UniqueFd control) { shutdown(control.get(), SHUT_RDWR); }

}  // namespace

absl::StatusOr<std::string> ReadToken(const v1::SecurityConfig& config) {
  if (config.token_file().empty()) return std::string();
  std::ifstream file(config.token_file());
  std::string token(proto::kMaxTokenBytes + 2, '\0');
  file.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(file.gcount());
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) {
    token.pop_back();
  }
  if (token.empty() || token.size() > proto::kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "security.token_file ", config.token_file(),
        " must be readable and hold 1 to ", proto::kMaxTokenBytes, " bytes"));
  }
  return token;
}

absl::Status Admit(const v1::SecurityConfig& config, std::string_view expected,
                   uint32_t own_uid, const ipc::PeerIdentity& peer,
                   std::string_view token) {
  if (config.require_same_uid() && peer.uid != own_uid && peer.uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("uid ", peer.uid, " may not use this daemon (",
                     "security.require_same_uid)"));
  }
  if (!expected.empty() && !ipc::ConstantTimeEquals(expected, token)) {
    return absl::PermissionDeniedError(
        token.empty()
            ? "this daemon wants a token (BALLAST_TOKEN_FILE or token=)"
            : "the token is not this daemon's");
  }
  return absl::OkStatus();
}

WorkerDoor::WorkerDoor(const Parts& parts)
    : parts_(parts),
      refusals_(parts.loop, "refused workers", LogWarn),
      probes_(parts.loop, "probes", LogInfo) {}

absl::StatusOr<std::unique_ptr<WorkerDoor>> WorkerDoor::Open(
    const v1::Config& config, const Parts& parts) {
  auto door = std::unique_ptr<WorkerDoor>(new WorkerDoor(parts));
  ASSIGN_OR_RETURN(std::string expected, ReadToken(config.security()));
  ipc::HandleServer::Options options;
  options.path = config.listen().workers().substr(kUnixPrefix.size());
  ASSIGN_OR_RETURN(
      door->server_,
      ipc::HandleServer::Create(
          std::move(options), parts.loop, parts.random,
          [security = config.security(), expected = std::move(expected),
           uid = getuid()](const ipc::PeerIdentity& peer,
                           std::string_view token) {
            return Admit(security, expected, uid, peer, token);
          },
          door.get()));
  return door;
}

void WorkerDoor::OnWorker(std::unique_ptr<ipc::WorkerLink> link,
                          base::UniqueFd control_fd) {
  Connect(std::move(link), Incarnation(parts_.random->Next()),
          std::move(control_fd));
}

absl::StatusOr<std::string> WorkerDoor::Adopt(base::Kept worker) {
  ASSIGN_OR_RETURN(const session::KeptWorker kept,
                   session::KeptWorker::FromNote(worker.note));
  if (worker.fds.size() != 2) {
    return absl::DataLossError("a worker was kept without its two descriptors");
  }
  auto link = std::make_unique<ipc::HandleConnection>(
      std::move(worker.fds[0]), std::move(worker.fds[1]), kept.peer, kept.key,
      parts_.loop);
  // A worker that cannot be given one has ended: its link will say so.
  absl::StatusOr<base::UniqueFd> control = link->SendControl();
  Connect(std::move(link), kept.incarnation,
          control.ok() ? *std::move(control) : base::UniqueFd());
  return base::ToHex(kept.key.bytes);
}

void WorkerDoor::Connect(std::unique_ptr<ipc::WorkerLink> link,
                         Incarnation incarnation, base::UniqueFd control_fd) {
  // gRPC owns its descriptor and never gives it up by itself: this one hangs
  // the connection up when the lease is over.
  base::UniqueFd control(fcntl(control_fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!control && control_fd) {
    return OnRefused(link->peer(),
                     absl::ResourceExhaustedError("no descriptor is left"));
  }
  session::HandleLink::Connect(
      std::move(link), incarnation, parts_.sessions,
      [loop = parts_.loop,
       control = std::move(control)](absl::Duration grace) mutable {
        if (grace == absl::ZeroDuration()) return HangUp(std::move(control));
        loop->PostAfter(grace, [control = std::move(control)]() mutable {
          HangUp(std::move(control));
        });
      });
  if (control_fd) parts_.server->AddConnection(std::move(control_fd));
}

void WorkerDoor::OnRefused(const ipc::PeerIdentity& peer,
                           const absl::Status& reason) {
  // Whoever only wants to know if a daemon lives says nothing and leaves.
  if (absl::IsUnavailable(reason)) {
    probes_.Log(absl::StrCat("probe pid=", peer.pid, " uid=", peer.uid));
    return;
  }
  const char* outcome = "protocol";
  if (absl::IsPermissionDenied(reason)) {
    const bool is_token = reason.message().find("token") != std::string::npos;
    outcome = is_token ? "denied_token" : "denied_identity";
  }
  parts_.metrics->counter(metrics::Family::kClientAttaches, {outcome})
      ->Increment();
  refusals_.Log(absl::StrCat("worker refused pid=", peer.pid, " uid=", peer.uid,
                             " reason=\"", std::string(reason.message()),
                             "\""));
}

}  // namespace ballast::daemon
