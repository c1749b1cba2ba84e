// What is committed together with the arrays of a shard's state.
#ifndef SERVER_OPTIMIZER_SCALARS_H_
#define SERVER_OPTIMIZER_SCALARS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/hyper_parameters.h"
#include "server/base/ids.h"

namespace ballast::optimizer {

struct Scalars {
  Generation generation;
  Step step;                   // last committed
  int64_t optimizer_step = 0;  // updates applied (skipped steps not counted)
  std::vector<kernels::HyperParameters> groups;
  std::vector<std::string> cursors;  // per local rank

  bool operator==(const Scalars&) const = default;
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_SCALARS_H_
