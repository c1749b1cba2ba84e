// The scalar kernels: the specification in code (kernels/FORMAT.md in words).
#ifndef KERNELS_REFERENCE_REFERENCE_H_
#define KERNELS_REFERENCE_REFERENCE_H_

#include "kernels/kernels.h"

namespace ballast::kernels {

const Kernels& Reference();

}  // namespace ballast::kernels

#endif  // KERNELS_REFERENCE_REFERENCE_H_
