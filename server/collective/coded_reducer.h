// Hops 1 and 2 of one bucket when gradients are quantized between nodes.
// Batch by batch (batch_cut.h):
//
//   each chunk of each owner: tree sum over the local ranks, fp32
//                             (+ residual, with error feedback)
//                             -> encoded into that owner's slice
//   exchange                  to each owner its slice, from each peer ours
//   each own chunk:           decode node 0's, add node 1's, … in node order,
//                             ÷ (nodes x workers) once, norm
//   partition groups          the same within the group, up to the sum; each
//                             own chunk: the group's sum is encoded again;
//                             exchange between the nodes that own the same in
//                             the other groups; decode group 0's, add group
//                             1's, … the own one's too, ÷, norm. A group of
//                             one node encodes its sum once, as the group's
//
// The owner's own contribution goes through the codec like all others, so that
// who owns an element changes no bit of it. Tensors without a codec go as one
// fp32 sum per node, on the same path.
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_CODED_REDUCER_H_
#define SERVER_COLLECTIVE_CODED_REDUCER_H_

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
#include "server/collective/coded_slice.h"
#include "server/collective/context.h"
#include "server/collective/error_sums.h"
#include "server/layout/layout.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class CodedReducer final : public BucketOperation {
 public:
  // Of each owner's slice as this node contributes to it, and of what the
  // peers contribute to its own. If codecs may change, the most that it can
  // be; the context's are none then.
  static int64_t WindowBytes(const Context& context, BucketId bucket);

  // `window` is in use from Start to the report, or to Cancel and an idle gate.
  static absl::StatusOr<std::unique_ptr<CodedReducer>> Create(
      Context* context, BucketId bucket, std::span<std::byte> window);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors* sum) const override;
  double residual_norm2() const override;

 private:
  CodedReducer(Context* context, BucketId bucket, std::span<std::byte> window);

  absl::Status MakeBatch(size_t batch);
  // `payload_bytes` is added to.
  transport::ExchangeSpec WithinGroup(size_t batch, uint64_t* payload_bytes);
  transport::ExchangeSpec AcrossGroups(size_t batch, uint64_t* payload_bytes);
  bool is_group_of_one() const {
    return context_->has_groups() && context_->num_owners() == 1;
  }

  std::vector<BatchPipeline::Work> EncodeTasks(size_t batch);
  std::vector<BatchPipeline::Work> GroupTasks(size_t batch);
  std::vector<BatchPipeline::Work> FinishTasks(size_t batch);

  // On pool threads. `residual_norm2` is written.
  void EncodeChunk(int thread, std::span<const CodedRun> runs, std::byte* slice,
                   std::span<ErrorSums> errors, double* residual_norm2);
  void EncodeGroupChunk(int thread, std::span<const CodedRun> runs,
                        std::span<ErrorSums> errors);
  void AddContributions(const CodedRun& coded,
                        std::span<std::byte* const> slices, float* out) const;
  // sum + residual in place of the sum; what is left over goes beside it.
  double EncodeWithResidual(const CodedRun& coded, const Run& run, float* sum,
                            std::byte* out);
  void FinishChunk(std::span<const CodedRun> runs, Reduced* reduced);

  Context* const context_;
  const layout::Bucket& bucket_;
  const BatchCut cut_;
  std::vector<CodedSlice> slices_;         // by owner
  std::vector<std::byte*> contributions_;  // of this node, by owner
  std::vector<std::byte*> own_slices_;     // of the own slice: by contributor
  std::vector<std::byte*> group_slices_;   // likewise, by partition group
  // By owner, by chunk, by run.
  std::vector<std::vector<std::vector<ErrorSums>>> errors_;
  std::vector<std::vector<ErrorSums>> group_errors_;  // by own chunk, by run
  std::vector<std::vector<double>> residual_norms2_;  // by owner, by chunk
  std::vector<Reduced> finish_results_;               // by own chunk
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_REDUCER_H_
