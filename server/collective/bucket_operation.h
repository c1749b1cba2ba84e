// One path of one bucket between nodes, as a resumable operation: what the
// collective knows of reducers and publishers.
#ifndef SERVER_COLLECTIVE_BUCKET_OPERATION_H_
#define SERVER_COLLECTIVE_BUCKET_OPERATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/error_sums.h"
#include "server/transport/transport.h"

namespace ballast::collective {

class BucketOperation {
 public:
  virtual ~BucketOperation() = default;

  // An error is reported here and not to the observer.
  virtual absl::Status Start(Step step) = 0;

  // The transport lets go of the memory; tasks are the gate's business.
  virtual void Cancel() = 0;

  // By the formula, of finished exchanges.
  virtual uint64_t payload_sent() const = 0;
  virtual const transport::Exchange* exchange() const = 0;  // may be null

  // Of what this node encoded last; zeros if nothing is quantized.
  virtual ErrorSums errors() const { return {}; }
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_BUCKET_OPERATION_H_
