#include "server/metrics/metrics.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/time/time.h"

namespace ballast::metrics {
namespace {

// A family or a label value that the table does not have: our own bug.
[[noreturn]] void DieOfUnknown(std::string_view family) {
  std::fprintf(stderr, "no such series in server/metrics/families.cc: %.*s\n",
               static_cast<int>(family.size()), family.data());
  std::abort();
}

// All combinations of the bounded labels' values.
void AddSeries(const FamilyInfo& info, std::vector<std::string_view> values,
               SeriesList* list) {
  if (values.size() == info.labels.size()) {
    auto series = std::make_unique<Series>();
    series->label_values = std::move(values);
    if (info.kind == Kind::kHistogram) {
      series->histogram = std::make_unique<Histogram>(info.buckets);
    }
    list->push_back(std::move(series));
    return;
  }
  for (const std::string_view value : info.labels[values.size()].values) {
    std::vector<std::string_view> longer = values;
    longer.push_back(value);
    AddSeries(info, std::move(longer), list);
  }
}

}  // namespace

Histogram::Histogram(const std::vector<double>& upper_bounds)
    : upper_bounds_(upper_bounds), counts_(upper_bounds.size() + 1) {}

void Histogram::Observe(double value) {
  const auto bucket = std::ranges::lower_bound(upper_bounds_, value);
  counts_[bucket - upper_bounds_.begin()].fetch_add(1,
                                                    std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

SeriesSet::SeriesSet(bool is_per_job) {
  for (const FamilyInfo& info : Families()) {
    families_.emplace_back();
    if (info.is_per_job == is_per_job) {
      AddSeries(info, {}, &families_.back());
    }
  }
}

const SeriesList& SeriesSet::series(Family family) const {
  return families_[static_cast<size_t>(family)];
}

Series* SeriesSet::Find(Family family, Kind kind, LabelValues values) {
  const FamilyInfo& info = Info(family);
  if (info.kind == kind) {
    for (const auto& series : series(family)) {
      if (std::ranges::equal(series->label_values, values)) {
        return series.get();
      }
    }
  }
  DieOfUnknown(info.name);
}

Counter* SeriesSet::counter(Family family, LabelValues values) {
  return &Find(family, Kind::kCounter, values)->counter;
}

Gauge* SeriesSet::gauge(Family family, LabelValues values) {
  return &Find(family, Kind::kGauge, values)->gauge;
}

Histogram* SeriesSet::histogram(Family family, LabelValues values) {
  return Find(family, Kind::kHistogram, values)->histogram.get();
}

JobMetrics::JobMetrics(std::string job_id, const base::Clock* wall)
    : SeriesSet(/*is_per_job=*/true), wall_(wall), job_id_(std::move(job_id)) {}

void JobMetrics::SetToCurrentTime(Gauge* gauge) const {
  if (wall_ == nullptr) return;
  gauge->Set(absl::ToDoubleSeconds(wall_->Now() - absl::UnixEpoch()));
}

Metrics::Metrics(BuildInfo build_info, const base::Clock* wall)
    : SeriesSet(/*is_per_job=*/false),
      build_info_(std::move(build_info)),
      wall_(wall) {}

std::shared_ptr<JobMetrics> Metrics::StartJob(std::string job_id) {
  auto job = std::make_shared<JobMetrics>(std::move(job_id), wall_);
  base::MutexLock lock(&mutex_);
  std::erase_if(jobs_,
                [](const auto& entry) { return entry.second.expired(); });
  jobs_[job->job_id()] = job;
  return job;
}

std::vector<std::shared_ptr<JobMetrics>> Metrics::jobs() const {
  std::vector<std::shared_ptr<JobMetrics>> live;
  base::MutexLock lock(&mutex_);
  for (const auto& [name, weak] : jobs_) {
    if (auto job = weak.lock()) live.push_back(std::move(job));
  }
  return live;
}

}  // namespace ballast::metrics
