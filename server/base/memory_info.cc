#include "server/base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace ballast::base {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

// The number after `key` at the start of a line.
std::optional<uint64_t> ReadField(const std::string& path,
                                  const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t value;
    if (word == key) {
      return file >> value ? std::optional(value) : std::nullopt;
    }
    std::getline(file, word);
  }
  return std::nullopt;
}

// nullopt for "max" and for a file that is not there.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  return file >> value ? std::optional(value) : std::nullopt;
}

uint64_t LeftInCgroup(const std::string& directory) {
  const auto limit = ReadNumber(directory + "/memory.max");
  const auto current = ReadNumber(directory + "/memory.current");
  if (!limit || !current) return kUnlimited;
  const std::string stat = directory + "/memory.stat";
  // Shared memory is counted as file pages, but cannot be dropped.
  const uint64_t file = ReadField(stat, "file").value_or(0);
  const uint64_t shared = ReadField(stat, "shmem").value_or(0);
  const uint64_t droppable = file > shared ? file - shared : 0;
  const uint64_t used = *current > droppable ? *current - droppable : 0;
  return *limit > used ? *limit - used : 0;
}

// The "0::/path" line of cgroup v2.
std::string CgroupPath(const std::string& proc) {
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "0::/")) return line.substr(3);
  }
  return "/";
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& proc,
                              const std::string& cgroup) {
  uint64_t available = kUnlimited;
  if (const auto kib = ReadField(proc + "/meminfo", "MemAvailable:")) {
    available = *kib * 1024;
  }
  std::string path = CgroupPath(proc);
  while (true) {
    available = std::min(available, LeftInCgroup(absl::StrCat(cgroup, path)));
    if (path.size() <= 1) return available;
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
}

}  // namespace ballast::base
