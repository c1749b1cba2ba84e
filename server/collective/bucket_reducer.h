// Hops 1 and 2 of one bucket: from the local gradients to the reduced
// gradient of the slice this node owns.
//
//   one node    each chunk: tree sum over the local ranks, ÷ W, norm
//   N nodes     each chunk of each owner: the sums of this node's subtrees
//               -> window; exchange; each own chunk: finish the tree over all
//               nodes' subtrees in rank order, ÷ W once, norm
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_BUCKET_REDUCER_H_
#define SERVER_COLLECTIVE_BUCKET_REDUCER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/collective/window_plan.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class BucketReducer final : public BucketOperation,
                            private transport::ExchangeObserver {
 public:
  // `window` has PlanWindow(...).elements; empty with one node. It is in use
  // from Start to the report, or to Cancel and an idle gate.
  static absl::StatusOr<std::unique_ptr<BucketReducer>> Create(
      Context* context, BucketId bucket, std::span<float> window);
  ~BucketReducer() override;

  absl::Status Start(Step step) override;
  void Cancel() override;

  uint64_t payload_sent() const override { return payload_sent_; }
  const transport::Exchange* exchange() const override {
    return exchange_.get();
  }

 private:
  class SumTask;
  class FinishTask;

  BucketReducer(Context* context, BucketId bucket, std::span<float> window);

  absl::Status PrepareExchange();
  void MakeTasks();
  void OnSumDone();
  void OnFinishDone(const Reduced& partial);
  void OnExchangeDone(transport::Exchange* exchange, Step step,
                      const absl::Status& status) override;

  // On pool threads.
  void SumPiece(int thread, const layout::Shard& shard,
                const layout::Piece& piece);
  void FinishPiece(int thread, const layout::Piece& piece, Reduced* reduced);
  void SumLocalRanks(int thread, kernels::RankRange ranks,
                     const layout::Piece& piece, float* out);

  Context* const context_;
  const layout::Bucket& bucket_;
  const layout::Shard& own_;
  const std::span<float> window_;
  const WindowPlan plan_;
  std::unique_ptr<transport::Exchange> exchange_;  // null with one node
  uint64_t payload_per_exchange_ = 0;

  std::vector<SumTask> sum_tasks_;  // empty with one node; never moved
  std::vector<FinishTask> finish_tasks_;
  Step step_;
  size_t num_left_ = 0;  // tasks of the running hop
  Reduced reduced_;
  uint64_t payload_sent_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_REDUCER_H_
