// What a worker says of its job when it attaches, as plain values: parsed by
// `service` (or made by a test), checked by Sessions.
#ifndef SERVER_SESSION_JOB_SPEC_H_
#define SERVER_SESSION_JOB_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/hyper_parameters.h"
#include "server/base/ids.h"
#include "server/layout/gather_units.h"
#include "server/layout/layout.h"

namespace ballast::session {

// A state in files that the job goes on from.
struct StoredJob {
  std::string path;       // below the daemon's snapshots.directory
  uint64_t checksum = 0;  // of its manifest: which one it is
  int64_t step = 0;       // the weights' version

  bool operator==(const StoredJob&) const = default;
};

struct JobSpec {
  std::string name;
  std::string tenant = "default";
  std::vector<layout::TensorSpec> tensors;
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  std::vector<kernels::HyperParameters> groups;  // at least one
  std::string exchange = "exact";                // layout/policy.h
  double gradient_clipping = 0;                  // global norm; 0: off
  uint64_t bucket_bytes = 0;                     // 0: the daemon's default
  absl::Duration hold = absl::ZeroDuration();    // zero: the daemon's default
  std::string coordinator;  // host:port of node 0; empty: the daemon's default
  std::string load;         // a snapshot to start from; empty: by `resume`
  std::optional<StoredJob> stored;  // found by the daemon
  // Set by Sessions: the job may go on from what other nodes hold of it, which
  // is known once all are there; and it must.
  bool asks_nodes = false;
  bool must_resume = false;
};

struct Placement {
  Rank rank;
  int world_size = 1;
  LocalRank local_rank;
  int local_world_size = 1;
  NodeRank node_rank;

  int num_nodes() const { return world_size / local_world_size; }
};

enum class Resume { kAuto, kNever, kMust };

struct AttachRequest {
  JobSpec job;
  Placement placement;
  Resume resume = Resume::kAuto;
  bool has_initial_values = false;
};

// Where things are, in the order of the request's tensors: `layout`, valid
// until the job ends (copy what outlives the call).
struct AttachReply {
  Incarnation incarnation;
  const layout::Layout* layout = nullptr;
  uint64_t initial_bytes = 0;  // 0: no kInitial segment was sent
  bool resumed = false;
  const layout::GatherUnits* units = nullptr;  // null: weights are resident
};

struct BeginReply {
  Generation generation;
  Step open_step;
  WeightVersion weight_version;
  int64_t optimizer_step = 0;
  std::string cursor;  // this rank's, committed with open_step - 1
  std::vector<kernels::HyperParameters> groups;  // of the last committed step
  std::vector<int32_t> pushed_buckets;           // in already for open_step
  std::optional<std::string> step_cursor;  // the input of open_step is in too
  std::string rank0_cursor;  // rank 0's, committed with open_step - 1
  std::string source;        // of a stored state: what it is from, in words
};

}  // namespace ballast::session

#endif  // SERVER_SESSION_JOB_SPEC_H_
