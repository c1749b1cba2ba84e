#include "server/metrics/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ballast::metrics {
namespace {

// Indexes after the parenthesised command name, which may hold blanks: field
// numbers of proc(5) minus 3.
constexpr size_t kUserTicks = 11;
constexpr size_t kSystemTicks = 12;
constexpr size_t kThreads = 17;
constexpr size_t kStartTicks = 19;
constexpr size_t kVirtualBytes = 20;
constexpr size_t kResidentPages = 21;

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<double> BootTime() {
  for (absl::string_view line : absl::StrSplit(ReadFile("/proc/stat"), '\n')) {
    double seconds;
    if (absl::ConsumePrefix(&line, "btime ") &&
        absl::SimpleAtod(line, &seconds)) {
      return seconds;
    }
  }
  return std::nullopt;
}

void ReadStat(ProcessStats* stats) {
  const std::string text = ReadFile("/proc/self/stat");
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return;
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(name_end + 2), ' ');
  const auto field = [&](size_t index) -> std::optional<double> {
    double value;
    if (index < fields.size() && absl::SimpleAtod(fields[index], &value)) {
      return value;
    }
    return std::nullopt;
  };
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto user = field(kUserTicks);
  const auto system = field(kSystemTicks);
  if (user && system) stats->cpu_seconds = (*user + *system) / ticks;
  const auto start = field(kStartTicks);
  const auto boot = BootTime();
  if (start && boot) stats->start_time_seconds = *boot + *start / ticks;
  stats->virtual_bytes = field(kVirtualBytes);
  if (const auto pages = field(kResidentPages)) {
    stats->resident_bytes = *pages * static_cast<double>(sysconf(_SC_PAGESIZE));
  }
  stats->threads = field(kThreads);
}

void CountFds(ProcessStats* stats) {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end;
       !error && it != end; it.increment(error)) {
    ++count;
  }
  if (!error) stats->open_fds = count;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    stats->max_fds = static_cast<double>(limit.rlim_cur);
  }
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  ReadStat(&stats);
  CountFds(&stats);
  return stats;
}

}  // namespace ballast::metrics
