#include "server/base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "server/base/cgroup.h"

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

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& proc,
                              const std::string& cgroup) {
  uint64_t available = kUnlimited;
  if (const auto kib = ReadField(proc + "/meminfo", "MemAvailable:")) {
    available = *kib * 1024;
  }
  for (const std::string& directory : CgroupDirectories(proc, cgroup)) {
    available = std::min(available, LeftInCgroup(directory));
  }
  return available;
}

}  // namespace ballast::base
