// Reference sums: canonical tree, mean, norm of a cell.
#ifndef KERNELS_REFERENCE_REDUCE_H_
#define KERNELS_REFERENCE_REDUCE_H_

#include <cstdint>
#include <span>

#include "kernels/kernels.h"

namespace ballast::kernels::reference {

void TreeSum(DType dtype, std::span<const void* const> sources, int64_t count,
             float* out);
void FinishMean(std::span<const RankRange> ranges,
                std::span<const float* const> parts, int world_size,
                int64_t count, float* out);
CellNorm NormOfCell(const float* x, int64_t count);

}  // namespace ballast::kernels::reference

#endif  // KERNELS_REFERENCE_REDUCE_H_
