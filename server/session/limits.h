// Bounds on what a worker may ask for, checked before anything of that size
// is allocated (I26), and the formula of a job's memory on one node.
#ifndef SERVER_SESSION_LIMITS_H_
#define SERVER_SESSION_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"
#include "server/session/job_spec.h"

namespace ballast::session {

struct Limits {
  int max_jobs = 64;
  int max_workers_per_job = 1024;  // world size
  int max_tensors = 100'000;
  uint64_t max_job_bytes = 0;    // on this node; 0: no bound
  uint64_t max_total_bytes = 0;  // of all jobs; 0: no bound
};

// InvalidArgument names field, value and rule; ResourceExhausted the bound.
absl::Status CheckPlacement(const Placement& placement, const Limits& limits);
absl::Status CheckSpec(const JobSpec& spec, const Limits& limits);

// "" or what differs between the job and what another rank says of it.
std::string Difference(const JobSpec& job, const JobSpec& other);
// The same of the initial hyperparameters; counts of groups are equal.
std::string GroupDifference(const JobSpec& job, const JobSpec& other);

// What the job's segments on one node need at least, before there is a layout.
uint64_t LeastBytes(const JobSpec& spec, int local_world_size);

// What the policy lets a node hold of a job's weights.
uint64_t ResidentBytes(const layout::ExchangePolicy& policy,
                       const layout::Layout& layout);

// Marks a ResourceExhausted as one for want of memory, not of a count that
// the limits bound: for those who count refusals.
absl::Status ForMemory(absl::Status status);
bool IsForMemory(const absl::Status& status);
// Likewise an Unavailable of a daemon that lets nobody in any more, not of a
// job or node that is away for a moment.
absl::Status ForDraining(absl::Status status);
bool IsForDraining(const absl::Status& status);

struct MemoryNeed {
  uint64_t gradients = 0;  // W segments
  uint64_t weights = 0;    // published, or what may be gathered of them
  uint64_t owned = 0;      // what others gather here, if they do
  uint64_t initial = 0;    // until Begin, where rank 0 is here
  uint64_t control_blocks = 0;
  uint64_t state = 0;      // masters, moments, reduced gradients
  uint64_t undo = 0;       // one chunk of state per thread
  uint64_t residuals = 0;  // two of every gradient's elements
  // A copy of the state, where snapshots or replicas are on.
  uint64_t snapshot = 0;
  // Two of the state here and two of another node's, where replicas are on.
  uint64_t replicas = 0;
  uint64_t windows = 0;  // between nodes (JobHost::WindowBytes)
  uint64_t total() const {
    return gradients + weights + owned + initial + control_blocks + state +
           undo + residuals + snapshot + replicas + windows;
  }
};
MemoryNeed EstimateMemory(const JobSpec& spec, const layout::Layout& layout,
                          NodeRank node, int compute_threads,
                          bool keeps_snapshots = false,
                          bool keeps_replicas = false);

}  // namespace ballast::session

#endif  // SERVER_SESSION_LIMITS_H_
