// What makes an update crash-safe in place: the step kernel copies each vector
// of the state to the record of its pool thread before it changes it, and
// `done` words say which chunks a step has reached. All in device memory that
// can outlive the process. Byte format, version 2, native little-endian:
//
//   0      UndoHeader (a page)
//   4096   done[num_chunks]      sequence words (proto::SequenceWord), 0 = none
//   ...    record[num_threads], each from a page boundary:
//            0    word     the open step's sequence word; 0 = record not valid
//            8    chunk    index over the node's chunks, in bucket order
//            16   elements of each array, padding included
//            24   saved    of those, from the first on: kept below (but for
//                          padding, which nothing changes)
//            64   arrays: master, then the moments, `capacity` floats apart
//
// Order of stores of one chunk:
//   chunk, elements, saved = 0  ->  word = step
//   again and again:  old values of a vector  ->  saved  ->  the vector changes
//   done = step  ->  word = 0
// so that whatever the instant of death, each element that has changed has its
// old value in a valid record, or its chunk is done. Restoring changes nothing
// of the record before the last element is back: it may be repeated.
//
// Threading: Begin, ForPiece and Finish on pool threads, each with its own
// thread index and chunk; everything else on the control thread while no task
// runs.
#ifndef SERVER_OPTIMIZER_UNDO_LOG_H_
#define SERVER_OPTIMIZER_UNDO_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/step_undo.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/optimizer/shard_state.h"

namespace ballast::optimizer {

struct RestoredChunk {
  int64_t chunk = 0;  // index over the node's chunks
  Generation generation;
  Step step;
  bool operator==(const RestoredChunk&) const = default;
};

class UndoLog {
 public:
  static constexpr char kName[] = "undo log";  // of its buffer
  static constexpr uint32_t kVersion = 2;      // of its format
  static constexpr char kWhat[] = "undo logs";

  // Empty, or where the device adopts the memory as Open.
  static absl::StatusOr<std::unique_ptr<UndoLog>> Create(
      device::Device* device, const layout::Layout& layout, NodeRank node,
      int num_moments, int num_threads);

  // A log that an earlier life left. DataLoss if it is not one of this layout,
  // FailedPrecondition if of another version.
  static absl::StatusOr<std::unique_ptr<UndoLog>> Open(
      std::unique_ptr<device::SharedBuffer> buffer,
      const layout::Layout& layout, NodeRank node, int num_moments);

  // Copies the chunks that were being updated back into `state` and says
  // which. They have to be updated again. DataLoss if a record is damaged.
  absl::StatusOr<std::vector<RestoredChunk>> RestoreOpenChunks(
      ShardState* state);

  bool has_open_chunks() const;
  int num_threads() const { return num_threads_; }
  int num_moments() const { return num_moments_; }
  int64_t num_chunks() const { return num_chunks_; }

  bool IsDone(int64_t chunk, uint64_t word) const;
  // Opens the record of `thread`, empty, for this chunk and step.
  void Begin(int thread, int64_t chunk, uint64_t word);
  // Where the old values of the piece of that chunk at `state_offset` go.
  // Pieces are updated in ascending order.
  kernels::StepUndo ForPiece(int thread, int64_t chunk,
                             int64_t state_offset) const;
  void Finish(int thread, int64_t chunk, uint64_t word);

  // The same log for another number of threads, while no chunk is open: its
  // size, and its bytes, written to that many zero bytes.
  uint64_t BytesFor(int num_threads) const;
  void CopyTo(std::span<std::byte> memory, int num_threads) const;
  // Another log goes on in this one's place: Open refuses it from now on.
  void Retire();

  // The state was written anew: no chunk is done, no record counts.
  void Clear();

 private:
  struct Record;
  struct Range {
    int64_t begin;
    int64_t end;
  };
  struct Chunk {
    Range state;  // in the arrays of the state
    std::vector<Range> pieces;
  };

  UndoLog(std::unique_ptr<device::SharedBuffer> buffer,
          std::vector<Chunk> chunks, int num_moments, int num_threads);

  static std::vector<Chunk> ChunksOf(const layout::Layout& layout,
                                     NodeRank node);
  Record* record(int thread) const;
  float* array(int thread, int index) const;
  void Restore(int thread, const Chunk& chunk, ShardState* state) const;
  std::atomic<uint64_t>* done() const;

  const std::unique_ptr<device::SharedBuffer> buffer_;
  const std::vector<Chunk> chunks_;
  const int num_moments_;
  const int num_threads_;
  const int64_t num_chunks_;
  const int64_t capacity_;  // elements of the largest chunk
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_UNDO_LOG_H_
