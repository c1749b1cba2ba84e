// One path of one bucket between nodes, as a resumable operation: what the
// collective knows of reducers and publishers.
#ifndef SERVER_COLLECTIVE_BUCKET_OPERATION_H_
#define SERVER_COLLECTIVE_BUCKET_OPERATION_H_

#include "server/collective/batch_pipeline.h"
#include "server/collective/error_sums.h"

namespace ballast::collective {

class BucketOperation {
 public:
  virtual ~BucketOperation() = default;

  // Starts, cancels and counts it; never null.
  virtual BatchPipeline* pipeline() = 0;

  // Adds those of what this node encoded for the last finished step, whose
  // window `sum` has; nothing if nothing is quantized.
  virtual void AddErrors(PathErrors* sum) const = 0;

  // Of what this node's gradients left over in the last step; 0 without error
  // feedback, NaN before the first one.
  virtual double residual_norm2() const = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_OPERATION_H_
