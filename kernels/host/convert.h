// cast, widen, reference and subtract, with vectors.
#ifndef KERNELS_HOST_CONVERT_H_
#define KERNELS_HOST_CONVERT_H_

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels::host {

// Puts the entries compiled for `target` into `table`; leaves the others.
void AddConvert(int64_t target, Kernels* table);

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_CONVERT_H_
