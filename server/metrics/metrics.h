// The daemon's counters, gauges and histograms (families.h), and their values
// as Prometheus text.
//
//   Counter* ok = metrics.counter(Family::kClientAttaches, {"ok"});
//   ok->Increment();
//   auto job = metrics.StartJob("gpt2");          // series appear at 0
//   job->histogram(Family::kStepDuration, {"reduce"})->Observe(0.01);
//   job.reset();                                  // … and are gone
//
// Handles are looked up once and kept: updating one is one atomic operation.
//
// Threading: handles thread-safe; Metrics and JobMetrics thread-safe.
// Lifetime: handles live as long as their Metrics or JobMetrics.
#ifndef SERVER_METRICS_METRICS_H_
#define SERVER_METRICS_METRICS_H_

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/metrics/families.h"

namespace ballast::metrics {

class Counter {
 public:
  void Increment(double by = 1) {
    value_.fetch_add(by, std::memory_order_relaxed);
  }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double by) { value_.fetch_add(by, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  explicit Histogram(const std::vector<double>& upper_bounds);
  void Observe(double value);

  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  // Of bucket i alone; i == upper_bounds().size() is the rest.
  uint64_t count(size_t i) const {
    return counts_[i].load(std::memory_order_relaxed);
  }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> upper_bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

// One sample set of one family: all label combinations, fixed at creation.
struct Series {
  std::vector<std::string_view> label_values;  // bounded ones
  Counter counter;
  Gauge gauge;
  std::unique_ptr<Histogram> histogram;
};
using SeriesList = std::vector<std::unique_ptr<Series>>;

using LabelValues = std::initializer_list<std::string_view>;

// The series of all families of one kind: those of one job, or those of none.
// Asking for a family or a label value that is not in the table is our own
// bug: the process dies.
class SeriesSet {
 public:
  explicit SeriesSet(bool is_per_job);

  SeriesSet(const SeriesSet&) = delete;
  SeriesSet& operator=(const SeriesSet&) = delete;

  Counter* counter(Family family, LabelValues values = {});
  Gauge* gauge(Family family, LabelValues values = {});
  Histogram* histogram(Family family, LabelValues values = {});
  const SeriesList& series(Family family) const;

 private:
  Series* Find(Family family, Kind kind, LabelValues values);

  std::vector<SeriesList> families_;  // by Family
};

class JobMetrics : public SeriesSet {
 public:
  // `wall` tells the time of day and outlives this; null: gauges of it stay 0.
  explicit JobMetrics(std::string job_id, const base::Clock* wall = nullptr);
  const std::string& job_id() const { return job_id_; }

  // To the Unix time, in seconds.
  void SetToCurrentTime(Gauge* gauge) const;

 private:
  const base::Clock* const wall_;
  const std::string job_id_;
};

struct BuildInfo {
  std::string version;
  std::string revision;
  std::string compiler;
};

class Metrics : public SeriesSet {
 public:
  // `wall` tells the time of day and outlives this and its jobs; null: gauges
  // of it stay 0.
  explicit Metrics(BuildInfo build_info, const base::Clock* wall = nullptr);

  // Series of a job while the result lives; shared, as a scrape holds on to
  // what it reads. Two jobs of one name do not run at once; the later one is
  // exported.
  std::shared_ptr<JobMetrics> StartJob(std::string job_id);

  const BuildInfo& build_info() const { return build_info_; }
  // The live jobs, by name.
  std::vector<std::shared_ptr<JobMetrics>> jobs() const;

 private:
  const BuildInfo build_info_;
  const base::Clock* const wall_;
  mutable base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<JobMetrics>> jobs_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast::metrics

#endif  // SERVER_METRICS_METRICS_H_
