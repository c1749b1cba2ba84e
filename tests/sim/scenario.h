// A scenario: a job, a cluster and what befalls them, as text (README.md has
// the language).
#ifndef TESTS_SIM_SCENARIO_H_
#define TESTS_SIM_SCENARIO_H_

#include <cstddef>
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

namespace ballast::sim {

inline constexpr char kJobName[] = "job";

enum class PushOrder { kLayout, kReverse, kRandom };

struct Fault {
  enum class Kind : uint8_t {
    kNan,         // rank's gradient holds a NaN (once)
    kInfinity,    // or an infinity
    kValue,       // rank passes another lr, until it is told
    kCrash,       // rank dies while it pushes
    kDaemonDies,  // node's daemon dies
    kSlow,        // rank waits before it pushes
    kPartition,   // node is cut off from the others
    kCorrupt,     // a bit of the node's published weights flips
    kRestart,     // node's daemon dies; the next goes on with what was kept
                  // (step 0: it dies while the job is being opened)
    // Of the disk and all machines; no step's.
    kDiskFails,   // a change fails
    kDiskFull,    // a write has no room
    kPowerFails,  // all stops, and what was not synced may be lost
  };
  static constexpr size_t kNumKinds = 12;
  static constexpr Kind kFirstOfNoStep = Kind::kDiskFails;
  Kind kind;
  int64_t step = 1;
  int where = 0;  // rank, or node
  double value = 0;
  std::optional<absl::Duration> back_after;  // restart, or how long
  // kCorrupt: which chunk, by its number in layout order; or any, of the node's
  // own or of others'.
  std::optional<size_t> chunk;
  std::optional<bool> is_own;
  bool is_early = false;   // before the vote; else at any moment
  bool is_unseen = false;  // and the node takes it for what it wrote
  bool may_miss = false;   // if all chunks are written again before
};

// As scenarios say it: "crash".
std::string_view Name(Fault::Kind kind);

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
  bool has_interfaces = false;  // a node's links share their rate
  bool has_keepers = false;     // also without a daemon that restarts
  int64_t snapshot_every = 0;   // steps; 0: none are kept
  int64_t replica_every = 0;    // likewise
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

  int world_size() const { return nodes * workers; }
};

// InvalidArgument names the line.
absl::StatusOr<Scenario> ParseScenario(std::string_view name,
                                       std::string_view text);

}  // namespace ballast::sim

#endif  // TESTS_SIM_SCENARIO_H_
