#include "server/daemon/kept/last_words.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/segment.h"
#include "server/ipc/control_block_view.h"

namespace ballast::daemon {
namespace {

bool TellOne(base::UniqueFd fd, const absl::Status& why) {
  struct stat info {};
  if (fstat(fd.get(), &info) < 0 ||
      info.st_size < static_cast<off_t>(proto::kPageSize)) {
    return false;
  }
  auto segment =
      base::Segment::Map(std::move(fd), info.st_size, base::Access::kReadWrite);
  if (!segment.ok()) return false;
  proto::ControlBlockHeader header;  // a copy: a worker may write to it
  std::memcpy(&header, segment->bytes().data(), sizeof(header));
  if (header.magic != proto::kControlBlockMagic ||
      header.version != proto::kControlBlockVersion ||
      std::max({header.num_buckets, header.num_groups, header.num_units}) >
          uint32_t{INT_MAX}) {
    return false;
  }
  auto view = ipc::ControlBlockView::Adopt(
      segment->bytes(), static_cast<int>(header.num_buckets),
      static_cast<int>(header.num_groups), static_cast<int>(header.num_units));
  if (!view.ok()) return false;
  view->StoreFailure(why.code(), /*is_fatal=*/true, /*word=*/0,
                     std::string(why.message()));
  view->Wake();
  return true;
}

}  // namespace

LastWords::LastWords(std::string_view job,
                     const std::vector<base::Kept>& found) {
  // session::Slot.
  const std::string prefix = absl::StrCat(std::string(job), "-control-");
  for (const base::Kept& item : found) {
    if (!absl::StartsWith(item.name, prefix) || item.fds.empty()) continue;
    base::UniqueFd copy(fcntl(item.fds[0].get(), F_DUPFD_CLOEXEC, 0));
    if (copy) blocks_.push_back(std::move(copy));
  }
}

int LastWords::Tell(const absl::Status& why) {
  int told = 0;
  for (base::UniqueFd& fd : std::exchange(blocks_, {})) {
    if (TellOne(std::move(fd), why)) ++told;
  }
  return told;
}

}  // namespace ballast::daemon
