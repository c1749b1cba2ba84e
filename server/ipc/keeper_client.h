// The daemon's side of a keeper (proto/keeper_socket.h): a vault that outlives
// this process.
//
// The client keeps copies of all it has put there: a keeper that dies is
// replaced, and gets them again. Until then the daemon goes on without one.
//
// Threading: control thread only. Put and Remove never block: they queue.
#ifndef SERVER_IPC_KEEPER_CLIENT_H_
#define SERVER_IPC_KEEPER_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/event_loop.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/ipc/keeper_message.h"

namespace ballast::ipc {

class KeeperClient final : public base::Vault {
 public:
  struct Options {
    std::string path;
    // How long to look for a keeper at the start; later every second, for ever.
    absl::Duration timeout = absl::Seconds(5);
    // Called while nobody answers: may start one. Null: somebody else does.
    std::function<void()> start = nullptr;
    // One line for people: a keeper that is lost or found again.
    std::function<void(const std::string&)> warn = nullptr;
    // The keeper does not take what was put under the name; OK: now it has. It
    // is asked each second until then.
    std::function<void(const std::string& name, const absl::Status& why)>
        on_refusal = nullptr;
  };

  // Connects and lists what an earlier daemon left; blocks for `timeout` at
  // most. Unavailable: nobody answers. FailedPrecondition: another daemon is
  // connected there.
  static absl::StatusOr<std::unique_ptr<KeeperClient>> Connect(
      Options options, base::EventLoop* loop);
  ~KeeperClient() override;

  // Copies of what was there at the start and was not removed since.
  absl::StatusOr<std::vector<base::Kept>> Found() const;
  // Of one that was lost, once another one has let this daemon in and keeps it.
  bool is_connected() const { return socket_ && !is_lost_; }
  int64_t num_lost() const { return num_lost_; }  // connections, since ever
  // The keeper has all that was put, or has refused it. Of an older one, which
  // does not say so: it is on its way there.
  bool is_flushed() const {
    return is_connected() && queue_.empty() && !needs_sync_ && num_syncs_ == 0;
  }

  absl::Status Put(std::string_view name, std::string_view note,
                   std::span<const int> fds) override;
  // Unavailable: there is no keeper now.
  absl::Status CheckHeld(std::string_view name) const override;
  void Remove(std::string_view name) override;

 private:
  struct Refused {
    absl::Status why;
    bool is_told_again = false;
  };

  KeeperClient(Options options, base::EventLoop* loop);

  absl::Status Open();
  absl::Status List(absl::Time deadline);
  absl::Status Watch();
  void OnSocket(uint32_t events);
  absl::Status ReadSome();
  absl::Status Flush();
  void FlushOrLose();
  void Lose(const absl::Status& why);
  void Retry();
  void OnStayed();
  void Queue(std::string_view name);
  void OnRefusal(const KeeperMessage& refusal);
  void OfferRefused();
  void OnSynced();
  std::vector<std::byte> NextWord(std::vector<int>* fds) const;
  void OnWordSent();
  absl::Status OnAnswer(const KeeperMessage& answer);

  const Options options_;
  base::EventLoop* const loop_;
  base::UniqueFd socket_;  // empty: there is no keeper now
  absl::btree_map<std::string, base::Kept> items_;
  // What a keeper may hold, also one that is lost.
  absl::btree_set<std::string> told_;
  std::deque<std::string> queue_;  // names to be told of; "": a Reset
  bool knows_sync_ = false;        // this keeper
  bool needs_sync_ = false;        // once the queue is empty
  int num_syncs_ = 0;              // that were not answered yet
  absl::btree_map<std::string, Refused> refused_;  // names of items_
  base::TimerId offer_timer_ = 0;                  // until these are told again
  base::TimerId timer_ = 0;                        // until another try
  absl::Time opened_;                              // when `socket_` was
  // One episode: until there is a connection that lasts.
  bool is_lost_ = false;
  base::TimerId stays_timer_ = 0;
  int64_t num_lost_ = 0;
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_KEEPER_CLIENT_H_
