// What the workers of a job hear that a daemon cannot go on with: the reason,
// in their control blocks, before their connections close.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_KEPT_LAST_WORDS_H_
#define SERVER_DAEMON_KEPT_LAST_WORDS_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"

namespace ballast::daemon {

class LastWords {
 public:
  // Takes copies of the descriptors of the job's control blocks.
  LastWords(std::string_view job, const std::vector<base::Kept>& found);

  // To every block that is one of this version, whatever its bytes are; how
  // many these were.
  int Tell(const absl::Status& why);

 private:
  std::vector<base::UniqueFd> blocks_;
};

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_KEPT_LAST_WORDS_H_
