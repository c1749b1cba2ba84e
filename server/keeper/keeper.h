// Holds the descriptors of a daemon's state, so that they outlive it
// (proto/keeper_socket.h); knows nothing of what they are.
//
//   daemon 1 ── Put … ──▶ Keeper     killed, or replaced
//   daemon 2 ── List ───▶ Keeper ──▶ all of it
//
// One daemon at a time: a second one is refused while the first lives. Peers
// are of this process's user; whatever they send, it is bounded and checked.
//
// Threading: control thread only. Borrows the loop, which outlives it.
#ifndef SERVER_KEEPER_KEEPER_H_
#define SERVER_KEEPER_KEEPER_H_

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/ipc/acceptor.h"
#include "server/ipc/keeper_message.h"
#include "server/ipc/socket_path.h"

namespace ballast::keeper {

class Keeper {
 public:
  struct Options {
    std::string path;
    int max_fds = 1 << 16;  // held at once
    // With no daemon for so long `on_idle` is called; at once if a daemon left
    // nothing here.
    absl::Duration linger = absl::InfiniteDuration();
    absl::AnyInvocable<void()> on_idle = nullptr;
  };

  // FailedPrecondition: a living keeper has the path.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(Options options,
                                                        base::EventLoop* loop);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  int num_items() const { return static_cast<int>(items_.size()); }
  int num_fds() const { return num_fds_; }
  bool has_daemon() const { return static_cast<bool>(daemon_); }

 private:
  Keeper(Options options, ipc::SocketPath path, base::EventLoop* loop);

  void Admit(base::UniqueFd socket);
  bool IsDaemonGone() const;
  void OnDaemon(uint32_t events);
  absl::Status ReadSome();
  absl::Status Take(ipc::KeeperMessage message);
  absl::Status Reset(bool marks);
  absl::Status Put(ipc::KeeperMessage message);
  void Sweep();
  void Remove(const std::string& name);
  void StartList();
  absl::Status Reply(std::vector<std::byte> bytes);
  absl::Status SendReplies();
  absl::Status SendList();
  void SendListLater();
  void End(const absl::Status& why);
  void DropDaemon();
  void ArmLinger();

  Options options_;
  const ipc::SocketPath path_;
  base::EventLoop* const loop_;
  ipc::Acceptor acceptor_;
  base::UniqueFd daemon_;  // the connection of the one that is here
  pid_t daemon_pid_ = 0;
  base::TimerId linger_ = 0;
  absl::btree_map<std::string, base::Kept> items_;
  absl::btree_set<std::string> marked_;  // names of items_
  int num_fds_ = 0;
  // Yet to be sent; until then nothing more is read.
  std::deque<std::vector<std::byte>> replies_;
  std::optional<std::deque<std::string>> listing_;  // names yet to be sent
  base::TimerId crowded_ = 0;                       // until it goes on
};

}  // namespace ballast::keeper

#endif  // SERVER_KEEPER_KEEPER_H_
