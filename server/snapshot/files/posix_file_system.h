// Files of this machine below a root directory. Every component below the root
// is opened by openat with O_NOFOLLOW; new files are 0600, directories 0700.
#ifndef SERVER_SNAPSHOT_FILES_POSIX_FILE_SYSTEM_H_
#define SERVER_SNAPSHOT_FILES_POSIX_FILE_SYSTEM_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/snapshot/files/file_system.h"

namespace ballast::snapshot {

class PosixFileSystem final : public FileSystem {
 public:
  // `root` is looked up by each call (it may be a link, or come and go with a
  // mount); it is not made.
  explicit PosixFileSystem(std::string root);

  absl::Status MakeDirectories(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Create(std::string_view path) override;
  absl::StatusOr<std::unique_ptr<File>> Open(std::string_view path) override;
  absl::StatusOr<std::vector<DirectoryEntry>> List(
      std::string_view path) override;
  absl::Status Rename(std::string_view from, std::string_view to) override;
  absl::Status RemoveAll(std::string_view path) override;
  absl::Status SyncDirectory(std::string_view path) override;

 private:
  struct Place {  // a name in an open directory
    base::UniqueFd directory;
    std::string name;
  };
  std::string Full(std::string_view path) const;
  absl::StatusOr<base::UniqueFd> OpenRoot() const;
  absl::StatusOr<base::UniqueFd> OpenDirectory(std::string_view path) const;
  absl::StatusOr<Place> Locate(std::string_view path) const;

  const std::string root_;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_FILES_POSIX_FILE_SYSTEM_H_
