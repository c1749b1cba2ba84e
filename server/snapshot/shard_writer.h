// Writes one node's file of one snapshot: while the state is copied the file
// is made, then the copy is written, slice by slice, at most at a given rate;
// then the header with the checksums, and all of it is made durable.
//
//   Start ─▶ make, reserve ─▶ copy ─▶ write … write ─▶ header, sync ─▶ done
//                  └────────────┴──────────┴── Cancel, or an error ─▶ done
//
// Threading: control thread only; files are touched in the io queue.
// `done` is called once, never from inside a call; only then may this, the
// image and the capture go. Cancel brings it about.
#ifndef SERVER_SNAPSHOT_SHARD_WRITER_H_
#define SERVER_SNAPSHOT_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/executor.h"
#include "server/snapshot/capture.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/weight_places.h"

namespace ballast::snapshot {

struct Cursor {
  int32_t rank = 0;
  std::string bytes;
};

class ShardWriter {
 public:
  struct Parts {
    FileSystem* files = nullptr;
    IoQueue* io = nullptr;
    const base::Clock* clock = nullptr;
    base::Executor* executor = nullptr;
    const ShardPlan* plan = nullptr;
    Capture* capture = nullptr;         // begun
    std::span<const std::byte> image;   // that it fills
    WeightPlaces weights;               // of frozen tensors
    uint64_t max_bytes_per_second = 0;  // 0: as fast as it goes
    uint64_t slice_bytes = 4 << 20;
  };
  using Done = absl::AnyInvocable<void(absl::StatusOr<FileInfo>) &&>;

  // `name` in `directory`, which is made if it is not there.
  ShardWriter(const Parts& parts, std::string directory, std::string name,
              std::vector<Cursor> cursors, Done done);
  ~ShardWriter();

  void Start();
  // As after an error, the whole directory is removed: a snapshot without this
  // file is none.
  void Cancel();

  uint64_t bytes_written() const { return bytes_written_; }
  uint64_t bytes_total() const { return bytes_total_; }

 private:
  struct Output;  // what the io queue works on

  using Step = void (ShardWriter::*)();
  void Do(absl::AnyInvocable<absl::Status(Output&) &&> work, Step next);
  void Copy();
  void Write();
  void WriteLater();
  void Finish();
  void WriteDone();
  void End(absl::StatusOr<FileInfo> result);

  const Parts parts_;
  Done done_;
  std::unique_ptr<Output> output_;
  uint64_t bytes_total_ = 0;  // of data
  uint64_t bytes_written_ = 0;
  absl::Time started_;
  base::TimerId timer_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SHARD_WRITER_H_
