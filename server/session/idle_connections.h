// Connections that hold no place in a job: welcomed and not attached yet, or
// done with their job. Bounded in number, per uid and in all, and in time, so
// that whoever sits on connections keeps nobody out (I26): the oldest one of
// the uid that has most of them makes room for the newest.
//
//   Add ──▶ idle ── Remove (it attached, or ended by itself)
//            ├── timeout ──────────▶ evict(key, why)
//            └── one more than may ─▶ evict(key of the oldest, why)
//
// Threading: control thread only. `evict` is called from within Add or from a
// timer, never for the key that Add was just given; it may call Remove.
#ifndef SERVER_SESSION_IDLE_CONNECTIONS_H_
#define SERVER_SESSION_IDLE_CONNECTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/executor.h"

namespace ballast::session {

class IdleConnections {
 public:
  struct Options {
    int max_total = 1024;  // both at least 1
    int max_per_uid = 256;
    absl::Duration timeout = absl::Seconds(30);
  };
  // DeadlineExceeded: idle for too long; ResourceExhausted: made room.
  using Evict =
      std::function<void(const std::string& key, const absl::Status& why)>;

  IdleConnections(const Options& options, base::Executor* executor,
                  Evict evict);
  ~IdleConnections();
  IdleConnections(const IdleConnections&) = delete;
  IdleConnections& operator=(const IdleConnections&) = delete;

  // `key` is idle from now on; it was not before.
  void Add(const std::string& key, uint32_t uid);
  // It is not idle any more; a key that was not is ignored.
  void Remove(const std::string& key);

  int size() const { return static_cast<int>(by_key_.size()); }

 private:
  struct Entry {
    uint32_t uid = 0;
    uint64_t number = 0;  // in the order of Add
    base::TimerId timer = 0;
  };
  using Queue = absl::btree_map<uint64_t, std::string>;  // oldest first

  void OnTimeout(const std::string& key);
  void EvictOldest(uint32_t uid, const absl::Status& why);
  uint32_t GreediestUid() const;

  const Options options_;
  base::Executor* const executor_;
  const Evict evict_;
  uint64_t num_added_ = 0;
  absl::flat_hash_map<std::string, Entry> by_key_;
  absl::btree_map<uint32_t, Queue> by_uid_;
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_IDLE_CONNECTIONS_H_
