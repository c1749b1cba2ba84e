// The gradients of simulated workers: a pure function of (weights, step,
// rank), element by element, so that any worker, its replacement and the
// reference model compute the same bits from the same weights.
//
// Tensors whose name begins with "ones" have the gradient 1 everywhere.
//
// Threading: pure functions.
#ifndef TESTS_SIM_GRADIENTS_H_
#define TESTS_SIM_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/layout/layout.h"

namespace ballast::sim {

// The initial weights of `tensor` in its dtype, appended nowhere else.
std::vector<std::byte> InitialWeights(const layout::TensorSpec& tensor,
                                      int64_t num_elements);

// What rank 0 loads in place of elements [begin, end) in `step`.
void LoadedWeights(const layout::TensorSpec& tensor, int64_t step,
                   int64_t begin, int64_t end, std::byte* out);

// Gradient of elements [begin, end) into `out` (the tensor's dtype), from the
// weights of the same elements.
void ComputeGradient(const layout::TensorSpec& tensor, int rank, int64_t step,
                     int64_t begin, int64_t end, const std::byte* weights,
                     std::byte* out);

// What a rank commits with a step.
std::string CursorOf(int rank, int64_t step);

// FNV-1a.
uint64_t Hash(const void* data, size_t size, uint64_t seed);

}  // namespace ballast::sim

#endif  // TESTS_SIM_GRADIENTS_H_
