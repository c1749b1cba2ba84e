// What jobs that have ended leave on this node: their replicas, for so long as
// the job would have been held, so that the next job of the same name and owner
// goes on from them, on whatever nodes it is.
//
//   job ends ─ Keep ─▶ waiting ─ hold passed, Drop ─▶ freed
//                        │  ▲
//                      Claim Release      by the next job, until it has
//                        ▼  │             replicas of its own
//                      claimed ─ Drop ─▶ freed
//
// Threading: control thread only.
// Ownership: keeps the files; borrows the executor.
#ifndef SERVER_DAEMON_REMNANTS_H_
#define SERVER_DAEMON_REMNANTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "server/base/executor.h"
#include "server/snapshot/files/held_files.h"

namespace ballast::daemon {

class Remnants {
 public:
  struct Owner {
    std::string job;
    std::string tenant;
    uint32_t uid = 0;

    auto operator<=>(const Owner&) const = default;
  };

  // `log`: one line per event; null: none.
  Remnants(base::Executor* executor,
           std::function<void(const std::string&)> log);
  ~Remnants();

  // In place of an earlier one.
  void Keep(const Owner& owner, std::shared_ptr<snapshot::HeldFiles> files,
            absl::Duration hold);
  // Null: there is none, or it is claimed. It stays until Drop or Release.
  std::shared_ptr<snapshot::HeldFiles> Claim(const Owner& owner);
  // Nobody goes on from it just now.
  void Release(const Owner& owner, absl::Duration hold);
  void Drop(const Owner& owner, const std::string& why);

  // Of a job of any owner; null: none. For checks in simulation.
  snapshot::HeldFiles* Find(const std::string& job) const;
  uint64_t bytes() const;
  bool Has(const Owner& owner) const { return remnants_.contains(owner); }
  bool is_empty() const { return remnants_.empty(); }

 private:
  struct Remnant {
    std::shared_ptr<snapshot::HeldFiles> files;
    base::TimerId timer = 0;
    bool is_claimed = false;
  };

  void Arm(const Owner& owner, Remnant* remnant, absl::Duration hold);
  void Log(const std::string& line) const;

  base::Executor* const executor_;
  const std::function<void(const std::string&)> log_;
  absl::btree_map<Owner, Remnant> remnants_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_REMNANTS_H_
