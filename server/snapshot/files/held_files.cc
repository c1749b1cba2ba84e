#include "server/snapshot/files/held_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::snapshot {
namespace {

absl::Status Missing(std::string_view path) {
  return absl::NotFoundError(absl::StrCat("cannot open ", std::string(path),
                                          ": No such file or directory"));
}

absl::Status Exists(std::string_view path) {
  return absl::AlreadyExistsError(
      absl::StrCat("cannot make ", std::string(path), ": File exists"));
}

std::string Parent(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? ""
                                         : std::string(path.substr(0, slash));
}

std::string Below(std::string_view path) {
  return path.empty() ? "" : absl::StrCat(std::string(path), "/");
}

// Those of an ordered container whose key lies below the directory.
template <typename Map>
auto RangeBelow(Map& map, const std::string& directory) {
  const std::string from = Below(directory);
  std::string to = from;
  if (to.empty()) return std::pair(map.begin(), map.end());
  to.back() = '0';  // the next one after '/'
  return std::pair(map.lower_bound(from), map.lower_bound(to));
}

}  // namespace

// ---- One file. ----

HeldFile::~HeldFile() {
  if (is_sparse_) {
    memory_->Give(reserved_);
  } else {
    memory_->TakeBack(std::move(segment_));
  }
}

absl::Status HeldFile::Resize(const std::string& path, uint64_t size_bytes) {
  if (size_bytes > segment_.size_bytes()) {
    ASSIGN_OR_RETURN(base::Segment larger, memory_->Make(path, size_bytes));
    std::ranges::copy(bytes(), larger.bytes().begin());
    memory_->TakeBack(std::exchange(segment_, std::move(larger)));
  }
  size_bytes_ = std::max(size_bytes_, size_bytes);
  return absl::OkStatus();
}

absl::Status HeldFile::MakeSparse(const std::string& path,
                                  uint64_t size_bytes) {
  absl::StatusOr<base::Segment> segment =
      base::Segment::CreateSparse("replica", size_bytes);
  if (!segment.ok()) {
    return absl::Status(
        segment.status().code(),
        absl::StrCat(path, ": ", std::string(segment.status().message())));
  }
  segment_ = *std::move(segment);
  size_bytes_ = size_bytes;
  is_sparse_ = true;
  return absl::OkStatus();
}

absl::Status HeldFile::Reserve(uint64_t offset, uint64_t size_bytes) {
  if (!memory_->Take(size_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(size_bytes, " more bytes: ", memory_->used(), " of ",
                     memory_->capacity(), " bytes for replicas are in use"));
  }
  reserved_ += size_bytes;
  return segment_.Reserve(offset, size_bytes);
}

void HeldFile::Clear() {
  segment_.Discard(0, segment_.size_bytes());
  memory_->Give(std::exchange(reserved_, 0));
}

// An open file.
class HeldFileHandle final : public File {
 public:
  HeldFileHandle(std::shared_ptr<HeldFile> file, std::string path,
                 bool is_writable)
      : file_(std::move(file)),
        path_(std::move(path)),
        is_writable_(is_writable) {}

  absl::Status WriteAt(uint64_t offset,
                       std::span<const std::byte> bytes) override {
    RETURN_IF_ERROR(Reserve(offset + bytes.size()));
    std::ranges::copy(bytes, file_->bytes().subspan(offset).begin());
    return absl::OkStatus();
  }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    const uint64_t size = file_->size_bytes();
    if (offset > size || bytes.size() > size - offset) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends at byte ", size, ": it is cut short"));
    }
    std::ranges::copy(file_->bytes().subspan(offset, bytes.size()),
                      bytes.begin());
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() override { return file_->size_bytes(); }

  absl::Status Reserve(uint64_t size_bytes) override {
    if (!is_writable_) {
      return absl::PermissionDeniedError(
          absl::StrCat(path_, " is open for reading"));
    }
    return file_->Resize(path_, size_bytes);
  }

  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<HeldFile> file_;
  const std::string path_;
  const bool is_writable_;
};

// ---- All files. ----

HeldFiles::HeldFiles(uint64_t capacity_bytes, NodeRank node, int num_nodes)
    : node_(node),
      num_nodes_(num_nodes),
      memory_(std::make_shared<HeldMemory>(capacity_bytes)) {}

HeldFiles::~HeldFiles() { Close(); }

void HeldFiles::Close() { memory_->Close(); }

bool HeldFiles::IsDirectory(const std::string& path) const {
  return path.empty() || directories_.contains(path);
}

absl::Status HeldFiles::MakeDirectories(std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  base::MutexLock lock(&mutex_);
  std::string directory;
  for (const std::string& part : parts) {
    directory = absl::StrCat(Below(directory), part);
    if (files_.contains(directory)) return Exists(directory);
    directories_.insert(directory);
  }
  return absl::OkStatus();
}

absl::Status HeldFiles::Add(std::string_view path,
                            std::shared_ptr<HeldFile> file) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  if (parts.empty()) {
    return absl::InvalidArgumentError("an empty path names no file");
  }
  const std::string name(path);
  base::MutexLock lock(&mutex_);
  if (!IsDirectory(Parent(path))) return Missing(path);
  if (directories_.contains(name) || files_.contains(name)) return Exists(name);
  files_[name] = std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> HeldFiles::Create(std::string_view path) {
  std::shared_ptr<HeldFile> file =
      std::unique_ptr<HeldFile>(new HeldFile(memory_));
  RETURN_IF_ERROR(Add(path, file));
  return std::make_unique<HeldFileHandle>(std::move(file), std::string(path),
                                          true);
}

absl::StatusOr<std::unique_ptr<File>> HeldFiles::Open(std::string_view path) {
  RETURN_IF_ERROR(SplitPath(path).status());
  base::MutexLock lock(&mutex_);
  if (IsDirectory(std::string(path))) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(path), " is not a regular file"));
  }
  const auto it = files_.find(std::string(path));
  if (it == files_.end()) return Missing(path);
  return std::make_unique<HeldFileHandle>(it->second, std::string(path), false);
}

absl::StatusOr<std::vector<DirectoryEntry>> HeldFiles::List(
    std::string_view path) {
  RETURN_IF_ERROR(SplitPath(path).status());
  const std::string directory(path);
  const size_t skipped = Below(directory).size();
  base::MutexLock lock(&mutex_);
  if (!IsDirectory(directory)) return Missing(path);
  std::vector<DirectoryEntry> entries;
  const auto add = [&](const std::string& below, bool is_directory) {
    std::string name = below.substr(skipped);
    if (absl::StrContains(name, "/")) return;
    entries.push_back({std::move(name), is_directory});
  };
  const auto [first_file, last_file] = RangeBelow(files_, directory);
  for (auto it = first_file; it != last_file; ++it) add(it->first, false);
  const auto [first, last] = RangeBelow(directories_, directory);
  for (auto it = first; it != last; ++it) add(*it, true);
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
  return entries;
}

absl::Status HeldFiles::Rename(std::string_view from, std::string_view to) {
  RETURN_IF_ERROR(SplitPath(from).status());
  RETURN_IF_ERROR(SplitPath(to).status());
  const std::string old_name(from);
  const std::string new_name(to);
  base::MutexLock lock(&mutex_);
  if (!IsDirectory(Parent(to))) return Missing(to);
  if (const auto it = files_.find(old_name); it != files_.end()) {
    if (directories_.contains(new_name)) return Exists(to);
    std::shared_ptr<HeldFile> file = std::move(it->second);
    files_.erase(it);
    files_[new_name] = std::move(file);
    return absl::OkStatus();
  }
  if (old_name.empty() || !directories_.contains(old_name)) {
    return Missing(from);
  }
  if (directories_.contains(new_name) || files_.contains(new_name) ||
      absl::StartsWith(Below(new_name), Below(old_name))) {
    return Exists(to);
  }
  const auto renamed = [&](const std::string& path) {
    return absl::StrCat(new_name, path.substr(old_name.size()));
  };
  const auto [first_file, last_file] = RangeBelow(files_, old_name);
  std::map<std::string, std::shared_ptr<HeldFile>> files;
  for (auto it = first_file; it != last_file; ++it) {
    files[renamed(it->first)] = std::move(it->second);
  }
  files_.erase(first_file, last_file);
  files_.merge(files);
  const auto [first, last] = RangeBelow(directories_, old_name);
  std::set<std::string> directories = {new_name};
  for (auto it = first; it != last; ++it) directories.insert(renamed(*it));
  directories_.erase(first, last);
  directories_.erase(old_name);
  directories_.merge(directories);
  return absl::OkStatus();
}

absl::Status HeldFiles::RemoveAll(std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  if (parts.empty()) {
    return absl::InvalidArgumentError("an empty path names no file");
  }
  const std::string name(path);
  // What it was the last name of is given back without the lock.
  std::vector<std::shared_ptr<HeldFile>> removed;
  base::MutexLock lock(&mutex_);
  const auto [first_file, last_file] = RangeBelow(files_, name);
  for (auto it = first_file; it != last_file; ++it) {
    removed.push_back(std::move(it->second));
  }
  files_.erase(first_file, last_file);
  if (const auto it = files_.find(name); it != files_.end()) {
    removed.push_back(std::move(it->second));
    files_.erase(it);
  }
  const auto [first, last] = RangeBelow(directories_, name);
  directories_.erase(first, last);
  directories_.erase(name);
  return absl::OkStatus();
}

absl::Status HeldFiles::SyncDirectory(std::string_view path) {
  RETURN_IF_ERROR(SplitPath(path).status());
  base::MutexLock lock(&mutex_);
  return IsDirectory(std::string(path)) ? absl::OkStatus() : Missing(path);
}

absl::StatusOr<std::shared_ptr<HeldFile>> HeldFiles::CreateHeld(
    std::string_view path, uint64_t size_bytes, bool is_sparse) {
  std::shared_ptr<HeldFile> file =
      std::unique_ptr<HeldFile>(new HeldFile(memory_));
  const std::string name(path);
  RETURN_IF_ERROR(is_sparse ? file->MakeSparse(name, size_bytes)
                            : file->Resize(name, size_bytes));
  RETURN_IF_ERROR(Add(path, file));
  return file;
}

absl::Status HeldFiles::Link(std::string_view path,
                             std::shared_ptr<HeldFile> file) {
  return Add(path, std::move(file));
}

std::shared_ptr<HeldFile> HeldFiles::Find(std::string_view path) {
  base::MutexLock lock(&mutex_);
  const auto it = files_.find(std::string(path));
  return it == files_.end() ? nullptr : it->second;
}

}  // namespace ballast::snapshot
