// optimizer_step and optimizer_step_undo, with vectors: state, clip, cast and
// the copy of what was there in one pass.
#ifndef KERNELS_HOST_OPTIMIZER_H_
#define KERNELS_HOST_OPTIMIZER_H_

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels::host {

// Puts the entries compiled for `target` into `table`; leaves the others.
void AddOptimizer(int64_t target, Kernels* table);

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_OPTIMIZER_H_
