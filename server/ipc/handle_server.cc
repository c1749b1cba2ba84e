#include "server/ipc/handle_server.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/handle_socket.h"
#include "server/base/errno_status.h"
#include "server/base/status_macros.h"
#include "server/ipc/fd_passing.h"
#include "server/ipc/handle_connection.h"
#include "server/ipc/pidfd.h"
#include "server/ipc/welcome.h"

namespace ballast::ipc {
namespace {

// The largest valid Hello; a longer one shows as truncated.
constexpr size_t kHelloBufferBytes =
    sizeof(proto::HelloMessage) + proto::kMaxTokenBytes;

absl::StatusOr<PeerIdentity> IdentityOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0) {
    return base::ErrnoStatus(errno, "SO_PEERCRED");
  }
  return PeerIdentity{credentials.pid, credentials.uid, credentials.gid};
}

// The token inside a Hello, after all that can be wrong with it was checked.
absl::StatusOr<std::string_view> ParseHello(std::span<const std::byte> bytes) {
  proto::HelloMessage hello;
  if (bytes.size() < sizeof(hello)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hello of ", bytes.size(), " bytes is too short"));
  }
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  if (hello.header.magic != proto::kHandleMagic ||
      hello.header.kind != proto::HandleMessageKind::kHello) {
    return absl::InvalidArgumentError("the first message is not a Hello");
  }
  if (hello.version != proto::kHandleVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the worker speaks version ", hello.version,
        " of the handle protocol, this daemon ", proto::kHandleVersion,
        "; use the library that came with the daemon"));
  }
  const std::span<const std::byte> token = bytes.subspan(sizeof(hello));
  if (hello.token_bytes != token.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hello announces a token of ", hello.token_bytes,
                     " bytes and carries ", token.size()));
  }
  return std::string_view(reinterpret_cast<const char*>(token.data()),
                          token.size());
}

ConnectionKey DrawKey(base::Random* random) {
  ConnectionKey key;
  for (size_t i = 0; i < key.bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random->Next();
    std::memcpy(key.bytes.data() + i, &word, sizeof(word));
  }
  return key;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HandleServer>> HandleServer::Create(
    Options options, base::EventLoop* loop, base::Random* random,
    Admission admission, WorkerAcceptor* acceptor) {
  ASSIGN_OR_RETURN(
      SocketPath path,
      SocketPath::Claim(options.path, SOCK_SEQPACKET, options.mode));
  return std::unique_ptr<HandleServer>(
      new HandleServer(std::move(options), std::move(path), loop, random,
                       std::move(admission), acceptor));
}

HandleServer::HandleServer(Options options, SocketPath path,
                           base::EventLoop* loop, base::Random* random,
                           Admission admission, WorkerAcceptor* acceptor)
    : options_(std::move(options)),
      path_(std::move(path)),
      loop_(loop),
      random_(random),
      admission_(std::move(admission)),
      workers_(acceptor),
      acceptor_(loop, [this](base::UniqueFd socket) {
        AddPending(std::move(socket));
      }) {}

HandleServer::~HandleServer() {
  StopAccepting();
  for (auto& [fd, pending] : pending_) {
    loop_->UnwatchFd(fd);
    loop_->Cancel(pending.deadline);
  }
}

absl::Status HandleServer::StartAccepting() {
  RETURN_IF_ERROR(path_.Open());
  return acceptor_.Start(path_.fd());
}

void HandleServer::StopAccepting() { acceptor_.Stop(); }

void HandleServer::AddPending(base::UniqueFd socket) {
  const int fd = socket.get();
  Pending pending;
  pending.socket = std::move(socket);
  if (auto peer = IdentityOf(fd); peer.ok()) {
    pending.peer = *peer;
  } else {
    Refuse(pending, peer.status());
    return;
  }
  pending.number = ++num_accepted_;
  if (const absl::Status status =
          loop_->WatchFd(fd, EPOLLIN, [this, fd](uint32_t) { OnHello(fd); });
      !status.ok()) {
    Refuse(pending, status);
    return;
  }
  pending.deadline = loop_->PostAfter(options_.hello_deadline, [this, fd] {
    Refuse(TakePending(fd),
           absl::DeadlineExceededError("no Hello came within the deadline"));
  });
  pending_.emplace(fd, std::move(pending));
  if (num_pending() > options_.max_pending) MakeRoom();
}

HandleServer::Pending HandleServer::TakePending(int fd) {
  Pending pending = std::move(pending_.extract(fd).mapped());
  loop_->UnwatchFd(fd);
  loop_->Cancel(pending.deadline);
  return pending;
}

void HandleServer::MakeRoom() {
  absl::flat_hash_map<uid_t, int> per_uid;
  for (const auto& [fd, pending] : pending_) ++per_uid[pending.peer.uid];
  int victim = -1;
  std::pair<int, uint64_t> best;  // how many of its uid, how early
  for (const auto& [fd, pending] : pending_) {
    const std::pair<int, uint64_t> rank(per_uid[pending.peer.uid],
                                        UINT64_MAX - pending.number);
    if (victim >= 0 && rank < best) continue;
    victim = fd;
    best = rank;
  }
  Refuse(TakePending(victim),
         absl::ResourceExhaustedError(
             absl::StrCat("no Hello came, and more than ", options_.max_pending,
                          " connections wait for theirs")));
}

void HandleServer::OnHello(int fd) {
  Pending pending = TakePending(fd);
  base::UniqueFd pidfd;
  if (const absl::Status status = CheckHello(pending, &pidfd); !status.ok()) {
    Refuse(pending, status);
    return;
  }
  Welcome(std::move(pending), std::move(pidfd));
}

absl::Status HandleServer::CheckHello(const Pending& pending,
                                      base::UniqueFd* pidfd) {
  std::vector<std::byte> buffer(kHelloBufferBytes);
  Packet packet;
  ASSIGN_OR_RETURN(const IoResult result,
                   ReceivePacket(pending.socket.get(), buffer, &packet));
  if (result == IoResult::kWouldBlock || packet.is_end) {
    return absl::UnavailableError("closed before its Hello");
  }
  if (packet.lacks_fds) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return absl::ResourceExhaustedError(absl::StrCat(
        "the daemon has no file descriptor left (its limit, RLIMIT_NOFILE, is ",
        limit.rlim_cur, ")"));
  }
  if (packet.is_truncated) {
    return absl::InvalidArgumentError(
        "Hello is too long or carries too many descriptors");
  }
  ASSIGN_OR_RETURN(const std::string_view token,
                   ParseHello(std::span(buffer).first(packet.size)));
  if (packet.fds.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Hello carries ", packet.fds.size(),
                     " descriptors instead of a pidfd"));
  }
  RETURN_IF_ERROR(CheckPidfd(packet.fds[0].get(), pending.peer.pid));
  RETURN_IF_ERROR(admission_(pending.peer, token));
  *pidfd = std::move(packet.fds[0]);
  return absl::OkStatus();
}

void HandleServer::Welcome(Pending pending, base::UniqueFd pidfd) {
  const ConnectionKey key = DrawKey(random_);
  absl::StatusOr<base::UniqueFd> control =
      SendWelcome(pending.socket.get(), key);
  if (absl::IsUnavailable(control.status())) {
    // The first packet on an empty socket: it cannot be full, only gone.
    workers_->OnRefused(
        pending.peer, absl::UnavailableError("closed before it was welcomed"));
    return;
  }
  if (!control.ok()) return Refuse(pending, control.status());
  workers_->OnWorker(std::make_unique<HandleConnection>(
                         std::move(pending.socket), std::move(pidfd),
                         pending.peer, key, loop_),
                     *std::move(control));
}

void HandleServer::Refuse(const Pending& pending, const absl::Status& reason) {
  const absl::string_view text =
      reason.message().substr(0, proto::kMaxTextBytes);
  proto::RefusalMessage refusal{};
  refusal.header = {proto::kHandleMagic, proto::HandleMessageKind::kRefusal};
  refusal.code = static_cast<int32_t>(reason.code());
  refusal.text_bytes = static_cast<uint32_t>(text.size());
  std::vector<std::byte> bytes(sizeof(refusal) + text.size());
  std::memcpy(bytes.data(), &refusal, sizeof(refusal));
  std::memcpy(bytes.data() + sizeof(refusal), text.data(), text.size());
  // Who does not take it in time does without.
  (void)SendPacket(pending.socket.get(), bytes, {});
  workers_->OnRefused(pending.peer, reason);
}

}  // namespace ballast::ipc
