// The daemon's typed access to one worker's control block
// (proto/control_block.h). Offsets come from the daemon's own counts, never
// from the block; what the worker writes is read once into locals and bounded.
//
// Threading: control thread only; the other side is another process.
// Lifetime: the mapping outlives the view.
#ifndef SERVER_IPC_CONTROL_BLOCK_VIEW_H_
#define SERVER_IPC_CONTROL_BLOCK_VIEW_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control_block.h"
#include "server/base/ids.h"

namespace ballast::ipc {

// proto::StepRecord and proto::StepQuality without their words.
struct StepReport {
  Generation generation;
  Step step;
  proto::StepOutcome outcome = proto::StepOutcome::kNone;
  uint32_t fallbacks = 0;
  WeightVersion weight_version;
  int64_t optimizer_step = 0;
  double grad_norm = 0;
  double clip_factor = 1;
  double lr = 0;
  double relative_error = 0;
  uint64_t wire_bytes_sent = 0;
  uint64_t wire_bytes_received = 0;
  uint64_t payload_bytes = 0;
  double seconds = 0;
  double stage_seconds[6] = {};
  std::array<proto::PathQuality, proto::kNumQualityPaths> quality{};
};

class ControlBlockView {
 public:
  // Bytes that a block of these counts needs (whole pages).
  static uint64_t SizeBytes(int num_buckets, int num_groups, int num_units = 0);

  ControlBlockView() = default;  // empty; only assignment is allowed

  // Over zeroed memory of SizeBytes() or more, page-aligned: writes the header.
  // InvalidArgument if counts or size are out of bounds.
  static absl::StatusOr<ControlBlockView> Create(std::span<std::byte> memory,
                                                 int num_buckets,
                                                 int num_groups,
                                                 int num_units = 0);
  // Over a block of an earlier life of this daemon: keeps its content.
  static absl::StatusOr<ControlBlockView> Adopt(std::span<std::byte> memory,
                                                int num_buckets, int num_groups,
                                                int num_units = 0);

  int num_buckets() const { return num_buckets_; }
  int num_groups() const { return num_groups_; }
  int num_units() const { return num_units_; }

  // Worker -> daemon; one acquire load. Any value may come: compare it.
  uint64_t ReadPushed(BucketId bucket) const;
  uint64_t ReadStepInput() const;
  uint64_t ReadWanted(int unit) const;
  // What belongs to the step input word that was just read. `groups` has
  // num_groups() entries. InvalidArgument if the cursor's size is out of
  // bounds; the values are whatever the worker wrote.
  absl::Status ReadStepValues(std::span<proto::GroupValues> groups,
                              std::string* cursor) const;

  // Daemon -> worker; release stores. Wake() afterwards, once for many.
  // In a fresh block, for the next life of the daemon: what a former worker
  // gave and this one does not give again. Groups beyond the block's are left
  // out.
  void StorePushed(BucketId bucket, uint64_t word);
  void StoreStepInput(uint64_t word, std::span<const proto::GroupValues> groups,
                      std::string_view cursor);

  void StoreConsumed(BucketId bucket, uint64_t word);
  void StorePublished(BucketId bucket, uint64_t word);
  void StoreHeld(int unit, uint64_t word);
  // What an earlier life of this daemon stored, or its worker since.
  uint64_t ReadHeld(int unit) const;
  void StoreOpen(Generation generation, Step step);
  // What rank 0 commits with the step, at most kMaxCursorBytes; before
  // StoreCommitted.
  void StoreRank0Cursor(uint64_t word, std::string_view cursor);
  // Writes the step's quality and record first, then `committed`.
  void StoreCommitted(const StepReport& report);
  // The job's end (fatal) or an aborted step. Text beyond the bound is cut.
  void StoreFailure(absl::StatusCode code, bool is_fatal, uint64_t word,
                    std::string_view text);
  // Whether the last failure that was stored whole is the word's.
  bool HasFailure(uint64_t word) const;
  // Why a gather was refused; before its held word.
  void StoreRefusal(absl::StatusCode code, std::string_view text);
  // The worker's Close is recorded: before it is answered.
  void StoreClosed();
  void Wake();

 private:
  ControlBlockView(std::byte* memory, int num_buckets, int num_groups,
                   int num_units);
  static absl::Status CheckBounds(std::span<std::byte> memory, int num_buckets,
                                  int num_groups, int num_units);

  proto::DaemonArea* daemon_area() const;
  proto::WorkerArea* worker_area() const;
  proto::Word* words(uint64_t offset, int index) const;

  std::byte* memory_ = nullptr;
  int num_buckets_ = 0;
  int num_groups_ = 0;
  int num_units_ = 0;
  proto::ControlBlockLayout layout_{};
};

}  // namespace ballast::ipc

#endif  // SERVER_IPC_CONTROL_BLOCK_VIEW_H_
