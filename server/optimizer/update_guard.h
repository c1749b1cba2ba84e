// Who must look at a chunk before a step changes it: a snapshot that has not
// yet copied it.
#ifndef SERVER_OPTIMIZER_UPDATE_GUARD_H_
#define SERVER_OPTIMIZER_UPDATE_GUARD_H_

#include <cstdint>

#include "server/base/ids.h"

namespace ballast::optimizer {

class UpdateGuard {
 public:
  virtual ~UpdateGuard() = default;
  // On a pool thread: masters, moments and published weights of the chunk
  // (index over the node's chunks, in bucket order) change after this returns.
  // May take as long as a copy of it.
  virtual void BeforeUpdate(int64_t chunk) = 0;
  // Likewise, of a version of the residuals (residuals.h) of a whole bucket.
  virtual void BeforeResiduals(int version, BucketId bucket) = 0;
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_UPDATE_GUARD_H_
