// encode, with vectors.
#ifndef KERNELS_HOST_ENCODE_H_
#define KERNELS_HOST_ENCODE_H_

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels::host {

// Puts the entries compiled for `target` into `table`; leaves the others.
void AddEncode(int64_t target, Kernels* table);

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_ENCODE_H_
