// What is left of hops 3 and 4 of one bucket where weights are not resident:
// where they are quantized, each own chunk of the masters is encoded, for
// whoever gathers it (owned_weights.h); else the optimizer has cast it already.
// Nothing goes between nodes.
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_OWNED_PUBLISHER_H_
#define SERVER_COLLECTIVE_OWNED_PUBLISHER_H_

#include <memory>
#include <vector>

#include "server/base/ids.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/collective/error_sums.h"
#include "server/collective/owned_weights.h"

namespace ballast::collective {

class OwnedPublisher final : public BucketOperation {
 public:
  // Both outlive the publisher.
  OwnedPublisher(Context* context, OwnedWeights* owned, BucketId bucket);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors* sum) const override;
  double residual_norm2() const override { return 0; }

 private:
  void Report();

  Context* const context_;
  OwnedWeights* const owned_;
  const BucketId bucket_;
  std::vector<std::vector<ErrorSums>> errors_;  // by own chunk, by run
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_OWNED_PUBLISHER_H_
