// Where a process leaves what the next one of its kind goes on with: named
// descriptors, each with a short note. Real: ipc::KeeperClient, over the keeper
// process. Simulated: a map that outlives its daemon.
//
// Threading: control thread only.
#ifndef SERVER_BASE_VAULT_H_
#define SERVER_BASE_VAULT_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/base/unique_fd.h"

namespace ballast::base {

inline constexpr size_t kMaxKeptNameBytes = 255;
inline constexpr size_t kMaxKeptNoteBytes = 4096;
inline constexpr size_t kMaxKeptFds = 4;  // of one name

struct Kept {
  std::string name;
  std::string note;
  std::vector<UniqueFd> fds;
};

class Vault {
 public:
  virtual ~Vault() = default;
  // Keeps copies of `fds`, in place of what had the name. InvalidArgument
  // beyond the bounds above; otherwise an error says that no descriptor could
  // be copied.
  virtual absl::Status Put(std::string_view name, std::string_view note,
                           std::span<const int> fds) = 0;
  // Whether what was put last under the name is there for the next process, as
  // far as is known: a vault may refuse it later than in Put, and says why here
  // until it has room. NotFound: nothing was put.
  virtual absl::Status CheckHeld(std::string_view name) const = 0;
  // A name that is not there is ignored.
  virtual void Remove(std::string_view name) = 0;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_VAULT_H_
