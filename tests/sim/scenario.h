// A scenario: a job, a cluster and what befalls them, as text (README.md has
// the language).
#ifndef TESTS_SIM_SCENARIO_H_
#define TESTS_SIM_SCENARIO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/hyper_parameters.h"
#include "server/layout/layout.h"
#include "server/transport/inproc/link_model.h"
#include "server/transport/routed/routes.h"
#include "tests/sim/fault.h"

namespace ballast::sim {

inline constexpr char kJobName[] = "job";

enum class PushOrder { kLayout, kReverse, kRandom };

// The disk of all nodes.
struct DiskFaults {
  uint64_t capacity_bytes = UINT64_MAX;
  int64_t fails_after = INT64_MAX;  // changes (writes, names, syncs)
  int64_t failures = 0;             // so many
};

struct Scenario {
  std::string name = "unnamed";
  std::string path;  // of its file; empty: it has none
  int nodes = 1;
  int workers = 1;  // per node
  std::vector<layout::TensorSpec> tensors;
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  std::vector<kernels::HyperParameters> groups = {kernels::HyperParameters()};
  double clip = 0;
  std::string exchange = "exact";  // server/layout/policy.h
  uint64_t bucket_bytes = 16 << 10;
  uint64_t chunk_bytes = 8 << 10;
  int buckets_in_flight = 4;
  // Exchange algorithms; by the links' cost if not forced.
  std::optional<transport::Algorithm> gather;
  std::optional<transport::Algorithm> reduce;
  int64_t steps = 5;
  PushOrder push_order = PushOrder::kLayout;
  int units_at_once = 2;  // that a rank holds, if weights are not resident
  bool overlap = false;   // push a bucket as soon as its weights are published
  absl::Duration hold = absl::Minutes(1);
  absl::Duration join_timeout = absl::Minutes(1);
  absl::Duration relink_timeout = absl::Minutes(2);
  // When the operator says to node 0 that missing nodes are gone for good, if
  // the job waits for it.
  absl::Duration adopt_after = absl::InfiniteDuration();
  std::vector<int> absent;  // ranks that never come
  transport::LinkFaults link;
  bool has_interfaces = false;     // a node's links share their rate
  bool has_keepers = false;        // also without a daemon that restarts
  std::optional<DiskFaults> disk;  // where there is one
  int64_t snapshot_every = 0;      // steps; 0: none are kept
  int64_t replica_every = 0;       // likewise
  // The version that is stored, and gone on from; 0: initial values are given.
  int64_t first_version = 0;
  // Of a job that goes on in another shape: what it was up to which step.
  struct Shape {
    int64_t last_step = 0;
    int nodes = 1;
    int workers = 1;
    int world_size() const { return nodes * workers; }
  };
  std::vector<Shape> earlier;  // ascending
  // Steps in which all ranks load weights, and whether with new moments.
  std::map<int64_t, bool> loads;
  std::vector<Fault> faults;
  // Empty: the job ends well. Otherwise what the error says: A, or one of
  // A or B.
  std::string expect_failure;

  // What comes after this life: none, or one.
  std::vector<Scenario> next;
  // The power of all machines fails after so many changes of the disk, or at
  // the job's end, and others go on from what is stored. 0: it does not.
  int64_t power_fails_after = 0;
  bool tears = false;  // every file that is not synced then
  // Which node of the life before each node was, with all that it holds (-1: a
  // new one). Empty: all machines are others.
  std::vector<int> from;
  // The step that it must be able to go on from, or a later one.
  int64_t begins_after = 0;

  int world_size() const { return nodes * workers; }
};

// Whether its daemons are replaced, in this life.
bool NeedsKeepers(const Scenario& scenario);

// InvalidArgument names the line.
absl::StatusOr<Scenario> ParseScenario(std::string_view name,
                                       std::string_view text);

}  // namespace ballast::sim

#endif  // TESTS_SIM_SCENARIO_H_
