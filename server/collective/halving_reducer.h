// Hops 1 and 2 of one bucket where node sums are added on their way (recursive
// halving, distance doubling): log2 N messages instead of N - 1, and the same
// bits, since partners at distance 2^k add exactly what the canonical tree
// adds at its level k. Only with a power of two of nodes whose ranks are one
// subtree each, in one partition group; no codes, which would be rounded again
// at every add.
//
//   4 nodes, what each keeps        round 0, distance 1   round 1, distance 2
//   node 0  sums of owners 0123 ->  02, of nodes 01   ->  0, of nodes 0123
//   node 1                          13, of nodes 01   ->  1
//   node 2                          02, of nodes 23   ->  2
//   node 3                          13, of nodes 23   ->  3
//
// The owners lie in the window in bit-reversed order (0 2 1 3), so that what is
// kept and what is sent are always one run each.
//
// Source: R. Thakur, R. Rabenseifner, W. Gropp, IJHPCA 19(1), 2005, section
// 4.2 (reduce-scatter by recursive halving).
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_HALVING_REDUCER_H_
#define SERVER_COLLECTIVE_HALVING_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/batch_cut.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/layout/layout.h"

namespace ballast::collective {

class HalvingReducer final : public BucketOperation {
 public:
  // Whether the job's nodes and ranks are such.
  static bool CanHalve(const Context& context);
  // Bytes that a node has for an owner, on the mean: the same on all nodes.
  static uint64_t PartBytes(const Context& context, BucketId bucket);
  static int64_t WindowElements(const Context& context, BucketId bucket);

  // `window` has WindowElements; in use from Start to the report, or to Cancel
  // and an idle gate.
  static absl::StatusOr<std::unique_ptr<HalvingReducer>> Create(
      Context* context, BucketId bucket, std::span<float> window);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors*) const override {}
  double residual_norm2() const override { return 0; }

 private:
  // A run of the owners in bit-reversed order, and where their sums lie in
  // the batch's part of the window.
  struct Run {
    size_t first = 0;
    size_t end = 0;
    int64_t begin = 0;  // element
    int64_t elements = 0;
  };

  struct Plan {
    BatchCut cut;
    std::vector<size_t> order;  // owners, bit-reversed
    std::vector<size_t> place;  // by owner, in `order`
    // By batch, by place and the end: where an owner's sums begin.
    std::vector<std::vector<int64_t>> begins;
    std::vector<int64_t> sums_at;      // by batch, in the window
    std::vector<int64_t> received_at;  // by batch
    int64_t elements = 0;              // of the window
  };
  static Plan MakePlan(const Context& context, BucketId bucket);

  HalvingReducer(Context* context, BucketId bucket, std::span<float> window);

  absl::Status MakeBatch(size_t batch);
  std::vector<BatchPipeline::Work> SumTasks(size_t batch);
  // What was received to the sums that are kept; `is_lower`: this node's ranks
  // come before the partner's.
  std::vector<BatchPipeline::Work> AddTasks(size_t batch, const Run& kept,
                                            bool is_lower);
  std::vector<BatchPipeline::Work> FinishTasks(size_t batch, bool is_lower);
  Run RunOf(size_t batch, size_t first, size_t end) const;
  std::span<float> Sums(size_t batch, const Run& run);
  std::span<float> Received(size_t batch, const Run& run);
  uint64_t PayloadOf(size_t batch, const Run& run) const;

  Context* const context_;
  const layout::Bucket& bucket_;
  const layout::Shard& own_;
  const std::span<float> window_;
  const Plan plan_;
  std::vector<Reduced> results_;  // by own chunk
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_HALVING_REDUCER_H_
