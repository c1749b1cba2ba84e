// Reference optimizer steps, fused with the cast of the new weight.
#ifndef KERNELS_REFERENCE_UPDATE_H_
#define KERNELS_REFERENCE_UPDATE_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/hyper_parameters.h"
#include "kernels/step_undo.h"

namespace ballast::kernels::reference {

void OptimizerStep(OptimizerKind kind, const StepScalars& scalars,
                   int64_t count, const float* gradient, float* master,
                   float* m, float* v, DType weight_dtype, void* weight_out);

void OptimizerStepUndo(OptimizerKind kind, const StepScalars& scalars,
                       int64_t count, const float* gradient, float* master,
                       float* m, float* v, DType weight_dtype, void* weight_out,
                       const StepUndo& undo);

}  // namespace ballast::kernels::reference

#endif  // KERNELS_REFERENCE_UPDATE_H_
