// decode and decode_add, with vectors.
#ifndef KERNELS_HOST_DECODE_H_
#define KERNELS_HOST_DECODE_H_

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels::host {

// Puts the entries compiled for `target` into `table`; leaves the others.
void AddDecode(int64_t target, Kernels* table);

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_DECODE_H_
