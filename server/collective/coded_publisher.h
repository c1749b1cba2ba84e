// Hops 3 and 4 of one bucket when weights are quantized between nodes. Batch
// by batch (batch_cut.h):
//
//   each own chunk:   encode the fp32 masters into the own slice, decode it
//                     again, cast -> own segment
//   exchange          the own slice to all, each owner's slice from it
//   other chunks:     decode the same bytes, cast -> own segment
//
// So every node, the owner too, publishes the decoded form (I25); nobody ever
// sees the cast of a master. Tensors without a codec go in their own dtype.
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_CODED_PUBLISHER_H_
#define SERVER_COLLECTIVE_CODED_PUBLISHER_H_

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
#include "server/collective/chunk_coder.h"
#include "server/collective/coded_slice.h"
#include "server/collective/context.h"
#include "server/collective/error_sums.h"
#include "server/layout/layout.h"

namespace ballast::collective {

class CodedPublisher final : public BucketOperation {
 public:
  // If codecs may change, the most that it can be; the context's are none then.
  static int64_t WindowBytes(const Context& context, const ChunkCoder& coder,
                             BucketId bucket);

  // `window` is in use from Start to the report, or to Cancel and an idle gate.
  // The coder outlives the publisher.
  static absl::StatusOr<std::unique_ptr<CodedPublisher>> Create(
      Context* context, const ChunkCoder* coder, BucketId bucket,
      std::span<std::byte> window);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors* sum) const override;
  double residual_norm2() const override { return 0; }

 private:
  CodedPublisher(Context* context, const ChunkCoder* coder, BucketId bucket,
                 std::span<std::byte> window);

  absl::Status MakeBatch(size_t batch);
  std::vector<BatchPipeline::Work> EncodeTasks(size_t batch);
  std::vector<BatchPipeline::Work> DecodeTasks(size_t batch);

  Context* const context_;
  const ChunkCoder* const coder_;
  const layout::Bucket& bucket_;
  const BatchCut cut_;
  std::vector<CodedSlice> slices_;  // by owner
  std::vector<std::byte*> bytes_;   // encoded, by owner
  // By own chunk, by run: of the published chunks, or in value mode its own.
  std::vector<std::span<ErrorSums>> errors_;
  std::vector<std::vector<ErrorSums>> own_errors_;
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_PUBLISHER_H_
