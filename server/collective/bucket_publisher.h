// Hops 3 and 4 of one bucket: the bytes of each owner's slice of the published
// weights to every node, received in place. A shard is one byte range of the
// segment (server/layout), so that one part per peer carries it, alignment
// gaps between tensors included. Nothing is encoded or decoded that could
// overlap with the wire: one batch, which the transport itself cuts.
//
// Threading: control thread only.
#ifndef SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_
#define SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/layout/layout.h"

namespace ballast::collective {

class BucketPublisher final : public BucketOperation {
 public:
  static absl::StatusOr<std::unique_ptr<BucketPublisher>> Create(
      Context* context, BucketId bucket);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors*) const override {}
  double residual_norm2() const override { return 0; }

 private:
  BucketPublisher(Context* context, BucketId bucket);

  absl::Status MakeBatch();

  Context* const context_;
  const BucketId bucket_;
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_PUBLISHER_H_
