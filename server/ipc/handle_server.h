// Accepts workers on the handle socket (proto/handle_socket.h): a path-named
// SOCK_SEQPACKET Unix socket.
//
// Before StartAccepting the path is taken and connections are refused.
//
//   connect ─▶ pending ── Hello ok ──▶ WorkerAcceptor::OnWorker
//                │  ╲── Hello bad ──▶ Refusal, closed
//                ╰─ nothing within hello_deadline ──▶ closed
//
// One daemon per path: a lock on PATH.lock says whether the owner of an
// existing socket lives. A dead one's socket is replaced, a live one's refused.
//
// Hostile peers: at most max_pending connections wait for their Hello, each
// for a bounded time. One more takes the place of the oldest one of the uid
// that has most: silence cannot lock out a worker, whose Hello comes at once.
// A Hello has bounded size and exactly one fd, which must be a pidfd of the
// peer itself. The kernel's SO_PEERCRED pid and the pidfd's
// pid are compared when both are visible in the daemon's pid namespace; a
// worker in a namespace that the daemon does not see shows as pid 0 and
// passes on its token alone.
//
// Threading: control thread only.
#ifndef SERVER_IPC_HANDLE_SERVER_H_
#define SERVER_IPC_HANDLE_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/event_loop.h"
#include "server/base/random.h"
#include "server/base/unique_fd.h"
#include "server/ipc/acceptor.h"
#include "server/ipc/socket_path.h"
#include "server/ipc/worker_link.h"

namespace ballast::ipc {

class WorkerAcceptor {
 public:
  virtual ~WorkerAcceptor() = default;

  // A worker has shown its token. `control_fd` is this side's end of the
  // stream socket for gRPC (non-blocking).
  virtual void OnWorker(std::unique_ptr<WorkerLink> link,
                        base::UniqueFd control_fd) = 0;

  // A connection was refused before it became a worker; for counters.
  virtual void OnRefused(const PeerIdentity& peer,
                         const absl::Status& reason) = 0;
};

class HandleServer {
 public:
  // OK, or why this peer may not be a worker (sent to it).
  using Admission = absl::AnyInvocable<absl::Status(const PeerIdentity& peer,
                                                    std::string_view token)>;
  struct Options {
    std::string path;    // at most 107 bytes
    mode_t mode = 0666;  // of the socket; the token decides, not the mode
    absl::Duration hello_deadline = absl::Seconds(5);
    int max_pending = 64;
  };

  // Creates the directory (0755) if it is missing. FailedPrecondition if a
  // live daemon serves the path; AlreadyExists if it is not a socket. The
  // pointers outlive the server; links may outlive it.
  static absl::StatusOr<std::unique_ptr<HandleServer>> Create(
      Options options, base::EventLoop* loop, base::Random* random,
      Admission admission, WorkerAcceptor* acceptor);

  // Removes the socket and the lock file. Established links live on.
  ~HandleServer();

  HandleServer(const HandleServer&) = delete;
  HandleServer& operator=(const HandleServer&) = delete;

  const std::string& path() const { return options_.path; }
  int num_pending() const { return static_cast<int>(pending_.size()); }

  // Lets workers in.
  absl::Status StartAccepting();
  // Accepts nobody any more (drain); the path stays taken.
  void StopAccepting();

 private:
  struct Pending {
    base::UniqueFd socket;
    PeerIdentity peer;
    base::TimerId deadline = 0;
    uint64_t number = 0;  // in the order of their coming
  };

  HandleServer(Options options, SocketPath path, base::EventLoop* loop,
               base::Random* random, Admission admission,
               WorkerAcceptor* acceptor);

  void AddPending(base::UniqueFd socket);
  void MakeRoom();
  Pending TakePending(int fd);
  void OnHello(int fd);
  absl::Status CheckHello(const Pending& pending, base::UniqueFd* pidfd);
  void Refuse(const Pending& pending, const absl::Status& reason);
  void Welcome(Pending pending, base::UniqueFd pidfd);

  const Options options_;
  SocketPath path_;
  base::EventLoop* const loop_;
  base::Random* const random_;
  Admission admission_;
  WorkerAcceptor* const workers_;
  Acceptor acceptor_;
  uint64_t num_accepted_ = 0;
  absl::flat_hash_map<int, Pending> pending_;  // by fd
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_HANDLE_SERVER_H_
