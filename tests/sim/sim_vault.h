// What a keeper does for a simulated daemon: outlives it.
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
    items_[std::string(name)] = {std::string(name), std::string(note),
                                 CopiesOf(fds)};
    return absl::OkStatus();
  }
  void Remove(std::string_view name) override {
    items_.erase(std::string(name));
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
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_SIM_VAULT_H_
