// Hops 1 and 2 of one bucket: from the local gradients to the reduced
// gradient of the slice this node owns.
//
//   one node    each chunk: tree sum over the local ranks, ÷ W, norm
//   N nodes     batch by batch (batch_cut.h): each chunk of each owner: the
//               sums of this node's subtrees -> window; exchange; each own
//               chunk: finish the tree over all nodes' subtrees in rank
//               order, ÷ W once, norm
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_BUCKET_REDUCER_H_
#define SERVER_COLLECTIVE_BUCKET_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/canonical_tree.h"
#include "server/base/ids.h"
#include "server/collective/batch_cut.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/collective/window_plan.h"
#include "server/layout/layout.h"

namespace ballast::collective {

class BucketReducer final : public BucketOperation {
 public:
  static int64_t WindowElements(const Context& context, BucketId bucket);

  // `window` has WindowElements; empty with one node. It is in use from Start
  // to the report, or to Cancel and an idle gate.
  static absl::StatusOr<std::unique_ptr<BucketReducer>> Create(
      Context* context, BucketId bucket, std::span<float> window);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors*) const override {}
  double residual_norm2() const override { return 0; }

 private:
  BucketReducer(Context* context, BucketId bucket, std::span<float> window);

  absl::Status MakeBatches();
  absl::Status MakeBatch(size_t batch);
  std::vector<BatchPipeline::Work> SumTasks(size_t batch);
  std::vector<BatchPipeline::Work> FinishTasks(size_t batch);
  void Report();

  // On pool threads.
  void SumPiece(int thread, size_t owner, size_t batch,
                const layout::Piece& piece);
  void FinishPiece(int thread, size_t batch, const layout::Piece& piece,
                   Reduced* reduced);
  void SumLocalRanks(int thread, kernels::RankRange ranks,
                     const layout::Piece& piece, float* out);

  Context* const context_;
  const layout::Bucket& bucket_;
  const layout::Shard& own_;
  const std::span<float> window_;
  const BatchCut cut_;
  const WindowPlan plan_;
  std::vector<Reduced> results_;  // by own chunk
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_REDUCER_H_
