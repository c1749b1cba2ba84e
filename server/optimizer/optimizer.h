// The shards this node owns, and one optimizer step over them: crash-safe in
// place. The step kernel copies each vector of the state to an undo record
// (one per pool thread) before it changes it; the reduced gradient stays until
// the step is published (DESIGN 6.2).
//
//   chunk c:  undo[thread] = {c, generation, step, nothing saved}  valid
//             vector by vector: old master and moments to the record, saved,
//             master, moments, published weights <- kernel(gradient)
//             done[c] = (generation, step)
//             undo[thread] = invalid
//
// Threading: control thread only; the arithmetic runs in the compute pool.
// Ownership: keeps state and undo memory; borrows the published weights.
#ifndef SERVER_OPTIMIZER_OPTIMIZER_H_
#define SERVER_OPTIMIZER_OPTIMIZER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/hyper_parameters.h"
#include "kernels/kernels.h"
#include "server/base/compute_pool.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"
#include "server/optimizer/update_guard.h"

namespace ballast::optimizer {

class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  // All owned chunks of `bucket` are updated and, if the optimizer casts, in
  // the published weights of this node. Also called, once, for a bucket it
  // owns nothing of.
  virtual void OnUpdated(BucketId bucket) = 0;
};

struct Parts {
  const layout::Layout* layout = nullptr;
  NodeRank node;
  const kernels::Kernels* kernels = nullptr;
  base::ComputePool* pool = nullptr;
  device::Device* device = nullptr;  // undo records
  ShardState* state = nullptr;
  std::span<std::byte> weights;  // the node's published segment
  // Where the node shows only what its workers gather, `weights` holds its own
  // shards alone, each this many bytes after its place in the segment; by
  // bucket. Empty: the segment itself.
  std::vector<int64_t> weight_shifts = {};
  // False where weights are quantized between nodes: what is published is the
  // decoded form, which the collective makes from the masters.
  bool casts_weights = true;
  UpdateObserver* observer = nullptr;
  UpdateGuard* guard = nullptr;  // null: nobody looks first
};

enum class Moments { kZero, kStay };

class Optimizer {
 public:
  // `undo`: the log of the previous life of this state, its open chunks
  // restored (UndoLog::RestoreOpenChunks); null: a new one is made.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      const Parts& parts, std::unique_ptr<UndoLog> undo = nullptr);
  // No task may be in the pool.
  virtual ~Optimizer() = default;

  // The scalars of the committed step, one per param group; then StartUpdate
  // once per bucket, in any order. Chunks that are done for this generation
  // and step (by the previous life) are left alone. They come from a peer:
  // InvalidArgument, and nothing changed, if a tensor's group has none, or one
  // asks for a momentum buffer that the state does not have.
  virtual absl::Status BeginStep(
      Generation generation, Step step,
      std::span<const kernels::StepScalars> scalars) = 0;
  // Never calls the observer from inside.
  virtual void StartUpdate(BucketId bucket) = 0;

  // Masters from the node's published weights; gradients zero, and moments
  // unless they are to stay. While nothing is updated; runs on the calling
  // thread.
  virtual void InitializeFromWeights(Moments moments) = 0;
  // Has the guard keep what is about to be overwritten by other means than an
  // update (I18).
  virtual void KeepAll() = 0;
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_OPTIMIZER_H_
