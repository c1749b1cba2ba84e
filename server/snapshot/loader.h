// A stored state, whatever nodes and workers it was saved on, into the memory
// of one node: its masters and moments, all published weights that it keeps,
// the scalars and its ranks' cursors (I17).
//
// Cursors say how far each rank was: they are given only to a job of as many
// ranks as the one that was saved.
//
// Threading: pure functions over a file system, and a thread-compatible class;
// they block.
// Errors: FailedPrecondition or InvalidArgument names what differs between the
// job and what is stored; DataLoss which file is damaged; PermissionDenied for
// another user's or tenant's job. After an error the memory holds anything.
#ifndef SERVER_SNAPSHOT_LOADER_H_
#define SERVER_SNAPSHOT_LOADER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/hyper_parameters.h"
#include "kernels/kernels.h"
#include "server/base/ids.h"
#include "server/layout/layout.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/shard_state.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/files/snapshot_reader.h"
#include "server/snapshot/weight_places.h"

namespace ballast::snapshot {

// What a job must be to go on from a stored state.
struct JobIdentity {
  std::string tenant;
  uint32_t uid = 0;  // 0 may read what is any user's
  kernels::OptimizerKind optimizer = kernels::OptimizerKind::kSgd;
  bool any_momentum = false;
  size_t num_groups = 0;
};

// `path`: for the text. Names, shapes, dtypes and which are trained must be
// the same; the order, groups of tensors and the exchange policy may differ.
absl::Status CheckFits(const Manifest& manifest, const std::string& path,
                       const JobIdentity& job,
                       std::span<const layout::TensorSpec> tensors);

struct LoadTarget {
  const layout::Layout* layout = nullptr;
  NodeRank node;
  const kernels::Kernels* kernels = nullptr;
  optimizer::ShardState* state = nullptr;  // zeros
  WeightPlaces weights;                    // of the published segment
  // Published weights are what was stored; false: casts of the masters.
  bool wants_published = false;
  // Error feedback: all zero, or null.
  optimizer::Residuals* residuals = nullptr;
};

// Which of `num_nodes` gets the residual of `stored_node` of `stored_nodes`: as
// many and more nodes keep their own; of fewer, node 0 gets the sum of the
// first ones. So the sum over all nodes, in their order, stays the same to the
// bit wherever a state goes.
int NodeOfResidual(int stored_node, int stored_nodes, int num_nodes);

struct LoadedState {
  int64_t step = 0;
  int64_t optimizer_step = 0;
  std::vector<kernels::HyperParameters> groups;
  std::vector<std::string> cursors;  // by local rank; empty: none fit
  std::string rank0_cursor;          // however many ranks there are
  int stored_world_size = 0;
  int stored_nodes = 0;
  bool has_residuals = false;  // were stored; loaded if they are wanted
  // What an error budget had made of tensors, by the job's.
  struct Budget {
    TensorId tensor;
    layout::Path path = layout::Path::kGradients;
    layout::CodecId codec = layout::CodecId::kNone;
    int calm = 0;
  };
  std::vector<Budget> budget;
};

// File by file, for whoever brings the files in turn.
class StateLoad {
 public:
  // Headers are read and checked. `target` is copied. `checksum`: of the
  // manifest that was found, so that all nodes read the same.
  static absl::StatusOr<std::unique_ptr<StateLoad>> Open(
      FileSystem& files, const std::string& path, uint64_t checksum,
      const LoadTarget& target);
  ~StateLoad();

  int num_shards() const;
  const Manifest& manifest() const;
  // Bytes of the file that ReadShard reads, beside its header: ascending,
  // without overlap.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::vector<Range> Ranges(int shard) const;
  // Each once, in this order.
  absl::Status ReadShard(int shard, const std::atomic<bool>* cancelled);
  LoadedState Finish();

 private:
  class Loading;
  StateLoad();

  std::unique_ptr<SnapshotReader> reader_;
  std::unique_ptr<Loading> loading_;
};

// All of it.
absl::StatusOr<LoadedState> LoadState(FileSystem& files,
                                      const std::string& path,
                                      uint64_t checksum,
                                      const LoadTarget& target,
                                      const std::atomic<bool>* cancelled);

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_LOADER_H_
