#include "server/snapshot/files/memory_file_system.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::snapshot {

// A file and its directories share it with whoever has it open.
struct MemoryFileSystem::Node {
  bool is_directory = false;
  Names now;
  Names durable;
  std::string data;
  std::string synced;
};

class MemoryFile final : public File {
 public:
  MemoryFile(MemoryFileSystem* system,
             std::shared_ptr<MemoryFileSystem::Node> node, std::string path,
             bool is_writable)
      : system_(system),
        node_(std::move(node)),
        path_(std::move(path)),
        is_writable_(is_writable) {}

  absl::Status WriteAt(uint64_t offset,
                       std::span<const std::byte> bytes) override {
    RETURN_IF_ERROR(Grow(offset + bytes.size()));
    std::memcpy(node_->data.data() + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    if (offset > node_->data.size() ||
        bytes.size() > node_->data.size() - offset) {
      return absl::DataLossError(absl::StrCat(
          path_, " ends at byte ", node_->data.size(), ": it is cut short"));
    }
    std::memcpy(bytes.data(), node_->data.data() + offset, bytes.size());
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() override { return node_->data.size(); }
  absl::Status Reserve(uint64_t size_bytes) override {
    return Grow(size_bytes);
  }
  absl::Status Sync() override {
    RETURN_IF_ERROR(system_->Change(path_));
    node_->synced = node_->data;
    return absl::OkStatus();
  }

 private:
  absl::Status Grow(uint64_t size_bytes) {
    if (!is_writable_) {
      return absl::PermissionDeniedError(
          absl::StrCat(path_, " is open for reading"));
    }
    RETURN_IF_ERROR(system_->Change(path_));
    if (size_bytes <= node_->data.size()) return absl::OkStatus();
    const uint64_t more = size_bytes - node_->data.size();
    if (more >
        system_->capacity_ - std::min(system_->capacity_, system_->bytes())) {
      ++system_->refusals_;
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot write ", path_, ": No space left on device"));
    }
    node_->data.resize(size_bytes);
    return absl::OkStatus();
  }

  MemoryFileSystem* const system_;
  const std::shared_ptr<MemoryFileSystem::Node> node_;
  const std::string path_;
  const bool is_writable_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}

MemoryFileSystem::~MemoryFileSystem() = default;

absl::Status MemoryFileSystem::Change(std::string_view path) {
  if (is_read_only_) {
    return absl::PermissionDeniedError(absl::StrCat(
        "cannot change ", std::string(path), ": Read-only file system"));
  }
  ++changes_;
  if (changes_left_ > 0) {
    --changes_left_;
    return absl::OkStatus();
  }
  if (failures_left_ == 0) return absl::OkStatus();
  --failures_left_;
  ++failures_;
  return absl::InternalError(absl::StrCat("cannot change ", std::string(path),
                                          ": Input/output error"));
}

uint64_t MemoryFileSystem::Bytes(const Node& node) {
  uint64_t total = node.data.size();
  for (const auto& [name, child] : node.now) total += Bytes(*child);
  return total;
}

uint64_t MemoryFileSystem::bytes() const { return Bytes(*root_); }

absl::StatusOr<MemoryFileSystem::Node*> MemoryFileSystem::Directory(
    std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  Node* node = root_.get();
  for (const std::string& part : parts) {
    const auto it = node->now.find(part);
    if (it == node->now.end() || !it->second->is_directory) {
      return absl::NotFoundError(absl::StrCat("cannot open ", std::string(path),
                                              ": No such file or directory"));
    }
    node = it->second.get();
  }
  return node;
}

absl::StatusOr<MemoryFileSystem::Place> MemoryFileSystem::Locate(
    std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  if (parts.empty()) {
    return absl::InvalidArgumentError("an empty path names no file");
  }
  const size_t slash = path.rfind('/');
  ASSIGN_OR_RETURN(
      Node* const directory,
      Directory(slash == std::string_view::npos ? "" : path.substr(0, slash)));
  return Place{directory, parts.back()};
}

absl::Status MemoryFileSystem::MakeDirectories(std::string_view path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> parts, SplitPath(path));
  Node* node = root_.get();
  for (const std::string& part : parts) {
    std::shared_ptr<Node>& child = node->now[part];
    if (child == nullptr) {
      if (absl::Status changed = Change(path); !changed.ok()) {
        node->now.erase(part);
        return changed;
      }
      child = std::make_shared<Node>();
      child->is_directory = true;
    }
    node = child.get();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Create(
    std::string_view path) {
  ASSIGN_OR_RETURN(const Place place, Locate(path));
  RETURN_IF_ERROR(Change(path));
  std::shared_ptr<Node>& node = place.directory->now[place.name];
  if (node != nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot make ", std::string(path), ": File exists"));
  }
  node = std::make_shared<Node>();
  return std::make_unique<MemoryFile>(this, node, std::string(path), true);
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Open(
    std::string_view path) {
  ASSIGN_OR_RETURN(const Place place, Locate(path));
  const auto it = place.directory->now.find(place.name);
  if (it == place.directory->now.end()) {
    return absl::NotFoundError(absl::StrCat("cannot open ", std::string(path),
                                            ": No such file or directory"));
  }
  if (it->second->is_directory) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(path), " is not a regular file"));
  }
  return std::make_unique<MemoryFile>(this, it->second, std::string(path),
                                      false);
}

absl::StatusOr<std::vector<DirectoryEntry>> MemoryFileSystem::List(
    std::string_view path) {
  ASSIGN_OR_RETURN(const Node* const node, Directory(path));
  std::vector<DirectoryEntry> entries;
  for (const auto& [name, child] : node->now) {
    entries.push_back({name, child->is_directory});
  }
  return entries;
}

absl::Status MemoryFileSystem::Rename(std::string_view from,
                                      std::string_view to) {
  ASSIGN_OR_RETURN(const Place old_place, Locate(from));
  ASSIGN_OR_RETURN(const Place new_place, Locate(to));
  const auto it = old_place.directory->now.find(old_place.name);
  if (it == old_place.directory->now.end()) {
    return absl::NotFoundError(absl::StrCat("cannot rename ", std::string(from),
                                            ": No such file or directory"));
  }
  const auto target = new_place.directory->now.find(new_place.name);
  if (target != new_place.directory->now.end() &&
      (it->second->is_directory || target->second->is_directory)) {
    return absl::AlreadyExistsError(
        absl::StrCat("cannot rename ", std::string(from), ": File exists"));
  }
  RETURN_IF_ERROR(Change(to));
  std::shared_ptr<Node> node = it->second;
  old_place.directory->now.erase(it);
  new_place.directory->now[new_place.name] = std::move(node);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveAll(std::string_view path) {
  absl::StatusOr<Place> place = Locate(path);
  if (absl::IsNotFound(place.status())) return absl::OkStatus();
  RETURN_IF_ERROR(place.status());
  if (!place->directory->now.contains(place->name)) return absl::OkStatus();
  RETURN_IF_ERROR(Change(path));
  place->directory->now.erase(place->name);
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncDirectory(std::string_view path) {
  ASSIGN_OR_RETURN(Node* const node, Directory(path));
  RETURN_IF_ERROR(Change(path));
  node->durable = node->now;
  return absl::OkStatus();
}

void MemoryFileSystem::Tear(Node* node, base::Random* random) {
  constexpr size_t kPage = 4096;
  std::string torn = node->synced;
  torn.resize(node->data.size());
  for (size_t at = 0; at < torn.size(); at += kPage) {
    if (random->Below(2) == 0) torn.replace(at, kPage, node->data, at, kPage);
  }
  torn_ += torn != node->data && torn != node->synced;
  node->data = std::move(torn);
}

void MemoryFileSystem::CrashNode(Node* node, base::Random* random, bool tears) {
  if (!node->is_directory) {
    const uint64_t fate = tears ? 2 : random->Below(3);
    if (fate == 0) {
      node->data = node->synced;
    } else if (node->data != node->synced && fate == 1) {
      node->data.resize(random->Below(node->data.size() + 1));
    } else if (node->data != node->synced) {
      Tear(node, random);
    }
    node->synced = node->data;
    return;
  }
  Names names = node->durable;
  for (const auto& [name, child] : node->now) {
    const auto it = node->durable.find(name);
    const bool is_same = it != node->durable.end() && it->second == child;
    if (!is_same && random->Below(2) == 0) names[name] = child;
  }
  for (const auto& [name, child] : node->durable) {
    if (!node->now.contains(name) && random->Below(2) == 0) names.erase(name);
  }
  // A rename is one change: what it moved has one name, or the other.
  const auto is_in = [](const Names& some, const std::shared_ptr<Node>& child) {
    return std::any_of(some.begin(), some.end(),
                       [&](const auto& item) { return item.second == child; });
  };
  for (const auto& [name, child] : node->now) {
    if (is_in(node->durable, child) && !is_in(names, child)) {
      names[name] = child;
    }
  }
  node->now = node->durable = std::move(names);
  for (const auto& [name, child] : node->now) {
    CrashNode(child.get(), random, tears);
  }
}

void MemoryFileSystem::Crash(base::Random* random, bool tears) {
  changes_left_ = INT64_MAX;
  CrashNode(root_.get(), random, tears);
}

std::string* MemoryFileSystem::Contents(std::string_view path) {
  const absl::StatusOr<Place> place = Locate(path);
  if (!place.ok()) return nullptr;
  const auto it = place->directory->now.find(place->name);
  if (it == place->directory->now.end()) return nullptr;
  return &it->second->data;
}

}  // namespace ballast::snapshot
