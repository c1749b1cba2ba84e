#include "server/daemon/options.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "server/daemon/units.h"

namespace ballast::daemon {

int ComputeThreads(const v1::Config& config) {
  if (config.compute().threads() > 0) return config.compute().threads();
  return std::max(1u, std::thread::hardware_concurrency());
}

absl::Duration Hold(const v1::Config& config) {
  return ParseDuration(config.jobs().hold()).value_or(absl::Minutes(10));
}

absl::Duration JoinTimeout(const v1::Config& config) {
  return ParseDuration(config.jobs().join_timeout())
      .value_or(absl::Minutes(10));
}

uint64_t MaxTotalBytes(const v1::Config& config) {
  if (config.limits().max_total_bytes() > 0) {
    return config.limits().max_total_bytes();
  }
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return memory / 5 * 4;
}

session::Options SessionOptions(const v1::Config& config) {
  session::Options options;
  options.limits.max_jobs = config.limits().max_jobs();
  options.limits.max_workers_per_job = config.limits().max_workers_per_job();
  options.limits.max_tensors = config.limits().max_tensors();
  options.limits.max_job_bytes = config.limits().max_job_bytes();
  options.limits.max_total_bytes = MaxTotalBytes(config);
  options.default_hold = Hold(config);
  options.join_timeout = JoinTimeout(config);
  options.default_bucket_bytes = config.compute().bucket_bytes();
  options.chunk_bytes = config.compute().chunk_bytes();
  options.compute_threads = ComputeThreads(config);
  return options;
}

}  // namespace ballast::daemon
