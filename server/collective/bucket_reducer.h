// Hops 1 and 2 of one bucket: from the local gradients to the reduced
// gradient of the slice this node owns.
//
//   one node    each chunk: tree sum over the local ranks, ÷ W, norm
//   N nodes     batch by batch (batch_cut.h): each chunk of each owner: the
//               sums of this node's subtrees -> window; exchange; each own
//               chunk: finish the tree over all nodes' subtrees in rank
//               order, ÷ W once, norm
//   groups      the same within the partition group (a group of one node: no
//               exchange), up to the tree: each own chunk: the sums of the
//               group's subtrees (group_sums.h); exchange between the nodes
//               that own the same in the other groups; each own chunk: finish
//               the tree over all groups' subtrees, ÷ W once, norm
//
// So groups change no bit, and every group reduces the same ones.
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
#include "server/collective/group_sums.h"
#include "server/collective/window_plan.h"
#include "server/layout/layout.h"
#include "server/transport/transport.h"

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
  // `payload_bytes` is added to.
  transport::ExchangeSpec WithinGroup(size_t batch, uint64_t* payload_bytes);
  transport::ExchangeSpec AcrossGroups(size_t batch, uint64_t* payload_bytes);
  std::span<std::byte> Bytes(int64_t begin, int64_t elements);  // of the window
  void PlanGroup();
  // Sums of the own batches, `num_sums` after one another from `runs` on.
  void AddPlaces(const std::vector<int64_t>& runs, size_t num_sums);

  std::vector<BatchPipeline::Work> SumTasks(size_t batch);
  std::vector<BatchPipeline::Work> GroupTasks(size_t batch);
  std::vector<BatchPipeline::Work> FinishTasks(size_t batch);

  // On pool threads. `offset` is in the own batch.
  void AddGroup(size_t batch, int64_t offset, int64_t count);
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
  // With groups of several nodes: how the group's sums are made, and where in
  // the window each place's sum begins, by batch.
  std::vector<GroupAdd> group_adds_;
  std::vector<std::vector<int64_t>> group_places_;
  std::vector<Reduced> results_;  // by own chunk
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_REDUCER_H_
