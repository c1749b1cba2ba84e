#include "server/metrics/metrics_page.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/process_stats.h"

namespace ballast::metrics {
namespace {

// A connection that says nothing holds one thread for the timeout: many of
// them, and briefly, so that a few do not block the page.
constexpr const char* kNumThreads = "16";
constexpr const char* kRequestTimeoutMs = "1000";

using FamilyList = std::vector<prometheus::MetricFamily>;

prometheus::MetricType TypeOf(Kind kind) {
  switch (kind) {
    case Kind::kCounter:
      return prometheus::MetricType::Counter;
    case Kind::kGauge:
      return prometheus::MetricType::Gauge;
    case Kind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric::Histogram ToHistogram(const Histogram& histogram) {
  prometheus::ClientMetric::Histogram result;
  const std::vector<double>& bounds = histogram.upper_bounds();
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= bounds.size(); ++i) {
    cumulative += histogram.count(i);
    result.bucket.push_back(
        {cumulative, i < bounds.size()
                         ? bounds[i]
                         : std::numeric_limits<double>::infinity()});
  }
  result.sample_count = cumulative;
  result.sample_sum = histogram.sum();
  return result;
}

prometheus::ClientMetric ToMetric(const FamilyInfo& info, const Series& series,
                                  const std::string* job_id) {
  prometheus::ClientMetric metric;
  if (job_id != nullptr) metric.label.push_back({"job_id", *job_id});
  for (size_t i = 0; i < info.labels.size(); ++i) {
    metric.label.push_back({std::string(info.labels[i].name),
                            std::string(series.label_values[i])});
  }
  switch (info.kind) {
    case Kind::kCounter:
      metric.counter.value = series.counter.value();
      break;
    case Kind::kGauge:
      metric.gauge.value = series.gauge.value();
      break;
    case Kind::kHistogram:
      metric.histogram = ToHistogram(*series.histogram);
      break;
  }
  return metric;
}

void AddBuildInfo(const BuildInfo& info, FamilyList* families) {
  prometheus::MetricFamily family;
  family.name = "ballast_build_info";
  family.help = "Constant 1; which build this is.";
  family.type = prometheus::MetricType::Gauge;
  prometheus::ClientMetric metric;
  metric.label = {{"version", info.version},
                  {"revision", info.revision},
                  {"compiler", info.compiler}};
  metric.gauge.value = 1;
  family.metric.push_back(std::move(metric));
  families->push_back(std::move(family));
}

void AddProcess(FamilyList* families) {
  const ProcessStats stats = ReadProcessStats();
  const auto add = [&](const char* name, const char* help,
                       std::optional<double> value, Kind kind) {
    if (!value) return;
    prometheus::MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = TypeOf(kind);
    family.metric.emplace_back();
    family.metric.back().counter.value = *value;
    family.metric.back().gauge.value = *value;
    families->push_back(std::move(family));
  };
  add("process_cpu_seconds_total", "User and system CPU time.",
      stats.cpu_seconds, Kind::kCounter);
  add("process_start_time_seconds", "Unix time of the start.",
      stats.start_time_seconds, Kind::kGauge);
  add("process_resident_memory_bytes", "Resident memory.", stats.resident_bytes,
      Kind::kGauge);
  add("process_virtual_memory_bytes", "Virtual memory.", stats.virtual_bytes,
      Kind::kGauge);
  add("process_open_fds", "Open file descriptors.", stats.open_fds,
      Kind::kGauge);
  add("process_max_fds", "Limit of open file descriptors.", stats.max_fds,
      Kind::kGauge);
  add("process_threads", "Threads.", stats.threads, Kind::kGauge);
}

FamilyList CollectAll(const Metrics& metrics) {
  FamilyList families;
  AddBuildInfo(metrics.build_info(), &families);
  const std::vector<std::shared_ptr<JobMetrics>> jobs = metrics.jobs();
  for (const FamilyInfo& info : Families()) {
    prometheus::MetricFamily family;
    family.name = std::string(info.name);
    family.help = std::string(info.help);
    family.type = TypeOf(info.kind);
    for (const auto& series : metrics.series(info.family)) {
      family.metric.push_back(ToMetric(info, *series, nullptr));
    }
    for (const auto& job : jobs) {
      for (const auto& series : job->series(info.family)) {
        family.metric.push_back(ToMetric(info, *series, &job->job_id()));
      }
    }
    families.push_back(std::move(family));
  }
  AddProcess(&families);
  return families;
}

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(const Metrics* metrics) : metrics_(metrics) {}
  FamilyList Collect() const override { return CollectAll(*metrics_); }

 private:
  const Metrics* const metrics_;
};

// The host and port of "host:port"; civetweb takes nearly anything else for
// an option.
absl::StatusOr<std::string> HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535 ||
      address.find_first_of(", \t\n") != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address, " is not HOST:PORT"));
  }
  return address.substr(0, colon);
}

}  // namespace

std::string ToText(const Metrics& metrics) {
  return prometheus::TextSerializer().Serialize(CollectAll(metrics));
}

struct MetricsPage::Impl {
  std::string host;
  // The exposer keeps a weak_ptr: hence shared.
  std::shared_ptr<Collector> collector;
  std::unique_ptr<prometheus::Exposer> exposer;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<MetricsPage>> MetricsPage::Create(
    const std::string& address, const Metrics* metrics) {
  const absl::StatusOr<std::string> host = HostOf(address);
  if (!host.ok()) return host.status();
  auto impl = std::make_unique<Impl>();
  impl->host = *host;
  impl->collector = std::make_shared<Collector>(metrics);
  // The library reports by exceptions; they end here.
  try {
    impl->exposer =
        std::make_unique<prometheus::Exposer>(std::vector<std::string>{
            "listening_ports", address, "num_threads", kNumThreads,
            "request_timeout_ms", kRequestTimeoutMs});
    impl->exposer->RegisterCollectable(impl->collector);
    const std::vector<int> ports = impl->exposer->GetListeningPorts();
    if (!ports.empty()) impl->port = ports.front();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ",
                                               address, ": ", error.what(),
                                               "; is the port taken?"));
  }
  return std::unique_ptr<MetricsPage>(new MetricsPage(std::move(impl)));
}

MetricsPage::MetricsPage(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MetricsPage::~MetricsPage() = default;

int MetricsPage::port() const { return impl_->port; }

std::string MetricsPage::address() const {
  return absl::StrCat(impl_->host, ":", impl_->port);
}

}  // namespace ballast::metrics
