// What Prometheus calls process_*: prometheus-cpp has no collector for it.
#ifndef SERVER_METRICS_PROCESS_STATS_H_
#define SERVER_METRICS_PROCESS_STATS_H_

#include <optional>

namespace ballast::metrics {

// Of this process; a value that cannot be read is left out.
struct ProcessStats {
  std::optional<double> cpu_seconds;
  std::optional<double> start_time_seconds;  // Unix time
  std::optional<double> resident_bytes;
  std::optional<double> virtual_bytes;
  std::optional<double> open_fds;
  std::optional<double> max_fds;
  std::optional<double> threads;
};

ProcessStats ReadProcessStats();

}  // namespace ballast::metrics

#endif  // SERVER_METRICS_PROCESS_STATS_H_
