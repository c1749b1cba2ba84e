// Reference casts between fp32 and the element types, and differences from
// what is finite of them.
#ifndef KERNELS_REFERENCE_CONVERT_H_
#define KERNELS_REFERENCE_CONVERT_H_

#include <cstdint>

#include "kernels/dtype.h"

namespace ballast::kernels::reference {

void Cast(const float* in, DType dtype, int64_t count, void* out);
void Widen(const void* in, DType dtype, int64_t count, float* out);
void FiniteOnly(const void* in, DType dtype, int64_t count, float* out);
void Subtract(const float* x, const void* base, DType dtype, int64_t count,
              float* out);

}  // namespace ballast::kernels::reference

#endif  // KERNELS_REFERENCE_CONVERT_H_
