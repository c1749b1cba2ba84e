// /metrics over HTTP, and the same as text. The only user of prometheus-cpp.
//
// Threading: thread-safe. A scrape reads atomics and /proc/self, nothing else.
#ifndef SERVER_METRICS_METRICS_PAGE_H_
#define SERVER_METRICS_METRICS_PAGE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"

namespace ballast::metrics {

// Prometheus text format 0.0.4, with process_* of this process.
std::string ToText(const Metrics& metrics);

class MetricsPage {
 public:
  // Listens on "host:port" (IPv6 in brackets); port 0 picks one. `metrics`
  // outlives the page. InvalidArgument for a malformed address; Unavailable if
  // it cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsPage>> Create(
      const std::string& address, const Metrics* metrics);
  ~MetricsPage();

  int port() const;
  // "host:port", with the port that is really used.
  std::string address() const;

 private:
  struct Impl;
  explicit MetricsPage(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace ballast::metrics

#endif  // SERVER_METRICS_METRICS_PAGE_H_
