// The control block: one memfd per worker, mapped by the worker and its
// daemon, that carries everything a step needs without a system call but the
// doorbell. This file is its byte format (version 6); little-endian, 64-bit.
//
//   0      ControlBlockHeader            written once by the daemon
//   4096   DaemonArea                    daemon -> worker
//   8192   WorkerArea                    worker -> daemon
//   12288  group values                  worker -> daemon  GroupValues[groups]
//   ...    cursor (64 KiB)               worker -> daemon
//   ...    pushed[buckets]               worker -> daemon  sequence words
//   ...    consumed[buckets]             daemon -> worker  sequence words
//   ...    published[buckets]            daemon -> worker  sequence words
//   ...    wanted[units]                 worker -> daemon  gather words
//   ...    held[units]                   daemon -> worker  gather words
//   ...    rank 0's cursor (64 KiB)      daemon -> worker
//
// The offsets of the variable parts are in the header, each on a page of its
// own. The daemon never reads the header back, nor any offset from it: all
// that a worker can write is hostile (I26), is read once and checked.
//
// A sequence word is generation << 40 | step. Words only grow.
//   pushed[b]     the gradient of bucket b for that step is complete
//   consumed[b]   committed (or aborted): the gradient may be overwritten
//   published[b]  the weights of bucket b are those of that step's version
//
// Where weights are not resident (a policy's secondary_partition=none; else
// there are no units), what a worker reads is gathered unit by unit:
//   wanted[u]     the number of a request, one more with each change: odd,
//                 the unit is to be held; even, it is not
//   held[u]       HeldWord: the request that this answers, what became of it,
//                 and the version of the weights that lie in the segment
// A unit that is wanted is gathered again after each step; held[u] says kNone
// from the commit on, until it is there.
//
// Worker -> daemon: store (release), then one byte on the handle socket.
// Daemon -> worker: store (release), then ++wake and FUTEX_WAKE on it.
#ifndef PROTO_CONTROL_BLOCK_H_
#define PROTO_CONTROL_BLOCK_H_

#include <atomic>
#include <cstdint>

namespace ballast::proto {

inline constexpr uint64_t kControlBlockMagic = 0x314b4c42'4c4c4142;  // BALLBLK1
inline constexpr uint32_t kControlBlockVersion = 6;
inline constexpr uint32_t kPageSize = 4096;
inline constexpr uint32_t kMaxCursorBytes = 64 * 1024;
inline constexpr uint32_t kMaxParamGroups = 256;
inline constexpr uint32_t kMaxBuckets = 1 << 16;
inline constexpr uint32_t kMaxUnits = 1 << 17;
inline constexpr uint32_t kMaxErrorBytes = 1024;
inline constexpr int kStepBits = 40;
inline constexpr int64_t kMaxStep = (int64_t{1} << kStepBits) - 1;
inline constexpr int64_t kMaxGeneration = (int64_t{1} << 23) - 1;

using Word = std::atomic<uint64_t>;
static_assert(sizeof(Word) == 8 && Word::is_always_lock_free);

constexpr uint64_t SequenceWord(int64_t generation, int64_t step) {
  return static_cast<uint64_t>(generation) << kStepBits |
         static_cast<uint64_t>(step);
}
constexpr int64_t StepOf(uint64_t word) {
  return static_cast<int64_t>(word & ((uint64_t{1} << kStepBits) - 1));
}
constexpr int64_t GenerationOf(uint64_t word) {
  return static_cast<int64_t>(word >> kStepBits);
}

enum class HeldState : uint32_t { kNone = 0, kHeld = 1, kRefused = 2 };

// request (its low 22 bits) << 42 | state << 40 | version
constexpr uint64_t HeldWord(uint64_t request, HeldState state,
                            int64_t version) {
  return request << (kStepBits + 2) |
         static_cast<uint64_t>(state) << kStepBits |
         static_cast<uint64_t>(version);
}
constexpr HeldState StateOfHeld(uint64_t word) {
  return static_cast<HeldState>(word >> kStepBits & 3);
}
constexpr int64_t VersionOfHeld(uint64_t word) { return StepOf(word); }
constexpr bool IsHeldFor(uint64_t word, uint64_t request) {
  return word >> (kStepBits + 2) ==
         (request & ((uint64_t{1} << (62 - kStepBits)) - 1));
}

struct ControlBlockHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_buckets;
  uint32_t num_groups;
  uint32_t num_units;  // 0: weights are resident
  uint64_t size_bytes;
  uint64_t daemon_area_offset;
  uint64_t worker_area_offset;
  uint64_t groups_offset;
  uint64_t cursor_offset;
  uint64_t pushed_offset;
  uint64_t consumed_offset;
  uint64_t published_offset;
  uint64_t wanted_offset;
  uint64_t held_offset;
  uint64_t rank0_cursor_offset;
};

// What a worker hands over with a step, per param group. Values that the
// optimizer does not have are zero. All ranks must agree, bit for bit.
struct GroupValues {
  double lr;
  double beta1;  // adam, adamw, lion
  double beta2;  // adam, adamw, lion
  double eps;    // adam, adamw, adagrad
  double weight_decay;
  double momentum;                   // sgd
  double dampening;                  // sgd
  double nesterov;                   // sgd: 0 or 1
  double lr_decay;                   // adagrad
  double initial_accumulator_value;  // adagrad
  // Of this step only, the same in all groups: the largest global norm, in
  // place of the job's. 0: the job's counts.
  double max_norm;
  // What the step does, a Load, the same in all groups.
  double load;
};

// A step that loads replaces the weights instead of updating them: rank 0's
// gradients are the new values, those of the other ranks count for nothing.
enum class Load : uint32_t {
  kNone = 0,
  kKeepState = 1,   // moments stay
  kResetState = 2,  // moments, residuals and the count of updates are zero
};

enum class StepOutcome : uint32_t {
  kNone = 0,
  kCommitted = 1,
  kSkipped = 2,  // committed with unchanged weights: non-finite gradient
  kLoaded = 3,   // committed with the weights that were given (Load)
};

// The daemon's answer to one step, valid when `word` is that step's sequence
// word; two slots, used in turn (step & 1).
struct StepRecord {
  Word word;
  StepOutcome outcome;
  uint32_t fallbacks;
  int64_t weight_version;
  int64_t optimizer_step;  // updates applied so far, skipped ones not counted
  double grad_norm;
  double clip_factor;
  double lr;  // of param group 0
  double relative_error;
  uint64_t wire_bytes_sent;
  uint64_t wire_bytes_received;
  uint64_t payload_bytes;
  double seconds;           // first push of this node -> all published
  double stage_seconds[6];  // collect, reduce, vote, update, publish, wait
};

// What crosses between nodes, as layout::Path: gradients, weights.
inline constexpr int kNumQualityPaths = 2;

// Of what all nodes sent of a path, as the step's votes had it: of this step's
// gradients (both hops, with partition groups), of the weights that they were
// computed from.
struct PathQuality {
  uint64_t sampled;       // elements; 0: not measured in this step
  double relative_error;  // L2; NaN if nothing was measured
  double clipped_share;   // of `sampled`; NaN if nothing was measured
  // L2, of what encoding took from this node's gradients and adds to those of
  // the next step. NaN without error feedback, of a skipped step, and where a
  // former daemon encoded them.
  double residual_norm;
  uint32_t num_wider;  // tensors whose codec is wider than the policy's
  uint32_t reserved;
};

// Belongs to the record of the same word and is read between two looks at that
// one's; another word: of this step none is known (as with a daemon that has
// no such part: it lies where version 6 began with zeros).
struct StepQuality {
  Word word;
  PathQuality paths[kNumQualityPaths];
};

struct DaemonArea {
  std::atomic<uint32_t> wake;     // futex word
  std::atomic<uint32_t> failure;  // see `failure_*`; odd while being written
  Word open;       // generation and step that the daemon waits for
  Word committed;  // last committed step, in the generation that committed it
  // The last failure, valid for an even, changed `failure` count: the job's
  // end (`failure_fatal` = 1) or one aborted step, to be repeated in the
  // generation of `open`.
  int32_t failure_code;  // absl::StatusCode
  uint32_t failure_fatal;
  uint64_t failure_word;  // the step that failed
  char failure_text[kMaxErrorBytes];
  StepRecord records[2];
  // Of the last gather that was refused, written as `failure_*` is.
  std::atomic<uint32_t> refusal;
  int32_t refusal_code;
  char refusal_text[kMaxErrorBytes];
  // What rank 0 committed with the step of this word, which is stored after
  // it and before `committed`; 0 while it is being written.
  Word rank0_cursor_word;
  uint32_t rank0_cursor_bytes;
  // 1: the worker's Close is recorded, whether or not its reply arrives.
  std::atomic<uint32_t> closed;
  StepQuality qualities[2];  // by step & 1, as the records
};
static_assert(sizeof(DaemonArea) <= kPageSize);

struct WorkerArea {
  // The step that the group values and the cursor belong to; stored (release)
  // after them and before the last pushed[] word of the step.
  Word step_input;
  uint32_t cursor_bytes;
  uint32_t reserved;
};

// Where everything lies, for both sides; the daemon computes it from its own
// counts and never reads it back.
struct ControlBlockLayout {
  uint64_t daemon_area_offset;
  uint64_t worker_area_offset;
  uint64_t groups_offset;
  uint64_t cursor_offset;
  uint64_t pushed_offset;
  uint64_t consumed_offset;
  uint64_t published_offset;
  uint64_t wanted_offset;
  uint64_t held_offset;
  uint64_t rank0_cursor_offset;
  uint64_t size_bytes;

  // num_buckets <= kMaxBuckets, num_groups <= kMaxParamGroups, num_units <=
  // kMaxUnits.
  static constexpr ControlBlockLayout For(uint32_t num_buckets,
                                          uint32_t num_groups,
                                          uint32_t num_units = 0) {
    ControlBlockLayout layout{};
    layout.daemon_area_offset = kPageSize;
    layout.worker_area_offset = 2 * kPageSize;
    layout.groups_offset = 3 * kPageSize;
    layout.cursor_offset =
        layout.groups_offset + Pages(num_groups * sizeof(GroupValues));
    layout.pushed_offset = layout.cursor_offset + Pages(kMaxCursorBytes);
    const uint64_t words = Pages(num_buckets * sizeof(Word));
    layout.consumed_offset = layout.pushed_offset + words;
    layout.published_offset = layout.consumed_offset + words;
    layout.wanted_offset = layout.published_offset + words;
    const uint64_t gather_words = Pages(num_units * sizeof(Word));
    layout.held_offset = layout.wanted_offset + gather_words;
    layout.rank0_cursor_offset = layout.held_offset + gather_words;
    layout.size_bytes = layout.rank0_cursor_offset + Pages(kMaxCursorBytes);
    return layout;
  }

 private:
  static constexpr uint64_t Pages(uint64_t bytes) {
    return (bytes + kPageSize - 1) / kPageSize * kPageSize;
  }
};

}  // namespace ballast::proto

#endif  // PROTO_CONTROL_BLOCK_H_
