// What a keeper does for a simulated daemon: outlives it, if it does not die
// first.
//
// Threading: events of its daemon's SimProcess.
#ifndef TESTS_SIM_SIM_VAULT_H_
#define TESTS_SIM_SIM_VAULT_H_

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "server/base/segment.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"

namespace ballast::sim {

class SimVault final : public base::Vault {
 public:
  absl::Status Put(std::string_view name, std::string_view note,
                   std::span<const int> fds) override {
    AllOfDaemon()[std::string(name)] = {std::string(name), std::string(note),
                                        CopiesOf(fds)};
    return absl::OkStatus();
  }
  absl::Status CheckHeld(std::string_view) const override {
    return is_there_ ? absl::OkStatus()
                     : absl::UnavailableError("there is no keeper");
  }
  void Remove(std::string_view name) override {
    AllOfDaemon().erase(std::string(name));
  }

  // The keeper dies, and another one comes: what it held is where the daemon
  // has copies of it (server/ipc/keeper_client.h), if there is one.
  void OnKeeperDied(bool has_daemon) {
    if (is_there_ && has_daemon) copies_ = std::move(items_);
    items_.clear();
    is_there_ = false;
  }
  void OnKeeperBack() {
    if (!is_there_) items_ = std::exchange(copies_, {});
    is_there_ = true;
  }
  // True: nothing is left of what it had put here.
  bool OnDaemonDied() {
    copies_.clear();
    return !is_there_;
  }

  std::vector<base::Kept> Found() const {
    std::vector<base::Kept> found;
    for (const auto& [name, item] : items_) {
      std::vector<int> fds;
      for (const base::UniqueFd& fd : item.fds) fds.push_back(fd.get());
      found.push_back({name, item.note, CopiesOf(fds)});
    }
    return found;
  }
  std::map<std::string, base::Kept>& items() { return items_; }

  // From now on what only the daemon sees is as it is at this moment, whatever
  // it still does to it: it is dead.
  void Freeze() {
    for (auto& [name, item] : items_) {
      for (const char* of_daemon : {"optimizer state", "undo log", "record",
                                    "gradient residuals", "published chunks"}) {
        if (!absl::EndsWith(name, of_daemon)) continue;
        base::Segment copy = CopyOf(item.fds[0].get());
        item.fds[0] = *copy.Duplicate();
      }
    }
  }

 private:
  std::map<std::string, base::Kept>& AllOfDaemon() {
    return is_there_ ? items_ : copies_;
  }
  static base::Segment CopyOf(int fd) {
    struct stat info {};
    fstat(fd, &info);
    const auto size = static_cast<uint64_t>(info.st_size);
    auto from =
        base::Segment::Map(base::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)), size,
                           base::Access::kReadOnly);
    auto to = base::Segment::Create("frozen", size);
    std::memcpy(to->bytes().data(), from->bytes().data(), size);
    return *std::move(to);
  }
  static std::vector<base::UniqueFd> CopiesOf(std::span<const int> fds) {
    std::vector<base::UniqueFd> copies;
    for (const int fd : fds) copies.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return copies;
  }

  std::map<std::string, base::Kept> items_;
  bool is_there_ = true;                      // the keeper
  std::map<std::string, base::Kept> copies_;  // while it is not
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_VAULT_H_
