// A worker's side of its control block (proto/control_block.h): words with
// the right memory order, records and failures read under their sequence
// words, sleeping on the futex.
//
// Threading: thread-compatible; the daemon writes at the same time.
// Ownership: a view over a mapping that outlives it.
#ifndef CLIENT_WORKER_CONTROL_VIEW_H_
#define CLIENT_WORKER_CONTROL_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control_block.h"

namespace ballast::worker {

// Of what all nodes sent of a path, sampled: the names of the metrics and of
// `ballastctl job`. NaN: not measured in this step, or not known; never 0.
struct PathQuality {
  uint64_t sampled = 0;              // elements; 0: not measured in this step
  double relative_error = kUnknown;  // RMS
  double clipped_share = kUnknown;   // of `sampled`, cut off by range clip16
  // L2, of what encoding took from this node's gradients and adds to those of
  // the next step; only of gradients, with error feedback.
  double residual_norm = kUnknown;
  uint32_t num_wider = 0;  // tensors that crossed by a wider codec

  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
};

// proto::StepRecord and proto::StepQuality as plain values.
struct StepResult {
  int64_t step = 0;
  int64_t weight_version = 0;
  int64_t optimizer_step = 0;  // updates so far, skipped ones not counted
  bool skipped = false;        // a non-finite gradient: weights unchanged
  bool loaded = false;         // the weights are those that rank 0 gave
  uint32_t fallbacks = 0;
  double grad_norm = 0;  // global, before clipping
  double clip_factor = 1;
  double lr = 0;  // of param group 0
  // Of what all nodes sent, RMS, sampled: this step's gradients or the weights
  // that they were computed from, the worse; 0 with `exact`, and where neither
  // was measured.
  double relative_error = 0;
  uint64_t wire_bytes_sent = 0;
  uint64_t wire_bytes_received = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;  // first push on this node -> all published
  double stage_seconds[6] = {};
  PathQuality gradients;  // of this step
  PathQuality weights;    // that they were computed from
};

// What ended the job or voided a step.
struct Failure {
  uint32_t count = 0;  // even; tells one failure from the next
  absl::StatusCode code = absl::StatusCode::kUnknown;
  bool is_fatal = false;
  uint64_t word = 0;  // the step that failed
  std::string text;
};

class ControlView {
 public:
  ControlView() = default;

  // DataLoss unless `bytes` begins with a header of this version for exactly
  // these counts and holds all parts.
  static absl::StatusOr<ControlView> Create(std::span<std::byte> bytes,
                                            int num_buckets, int num_groups,
                                            int num_units = 0);

  uint64_t open() const;
  uint64_t committed() const;
  uint64_t published(int bucket) const;

  // The answer to the step of `word`; nullopt while there is none.
  std::optional<StepResult> Record(uint64_t word) const;

  // What rank 0 committed with the step of `word`; false if it is another
  // step's. After committed() is `word`.
  bool ReadRank0Cursor(uint64_t word, std::string* cursor) const;

  // The last failure, if it is another than number `seen` (0: none seen).
  std::optional<Failure> FailureAfter(uint32_t seen) const;
  // The daemon has recorded this worker's Close.
  bool IsClosed() const;

  // Group values and cursor of the step of `word`; before its last pushed[].
  void StoreInput(uint64_t word, std::span<const proto::GroupValues> groups,
                  std::string_view cursor);
  void StorePushed(int bucket, uint64_t word);

  // Where weights are not resident (proto/control_block.h): a request, what
  // became of it, and why the last one that was refused was.
  void StoreWanted(int unit, uint64_t request);
  uint64_t held(int unit) const;
  absl::Status Refusal() const;

  // Read before a condition is checked, and given to Sleep if it is not met:
  // no wake between the two is lost.
  uint32_t wake() const;
  void Sleep(uint32_t seen, absl::Duration timeout) const;

 private:
  proto::DaemonArea* daemon_ = nullptr;
  proto::WorkerArea* worker_ = nullptr;
  proto::GroupValues* groups_ = nullptr;
  std::byte* cursor_ = nullptr;
  const std::byte* rank0_cursor_ = nullptr;
  proto::Word* pushed_ = nullptr;
  const proto::Word* published_ = nullptr;
  proto::Word* wanted_ = nullptr;
  const proto::Word* held_ = nullptr;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_CONTROL_VIEW_H_
