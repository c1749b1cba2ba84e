// What a tensor list must obey, and its sizes. Everything here came from a
// worker: each refusal is InvalidArgument and names tensor, value and rule.
//
// Threading: pure functions.
#ifndef SERVER_LAYOUT_TENSOR_RULES_H_
#define SERVER_LAYOUT_TENSOR_RULES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/layout/types.h"

namespace ballast::layout {

// Elements of `tensor`: the product of its shape (1 for a scalar).
absl::StatusOr<int64_t> NumElements(const TensorSpec& tensor,
                                    int64_t max_elements);

absl::Status CheckTopology(const Topology& topology);

// Grammar and uniqueness of names, shapes, dtypes, groups, the bound on the
// sum. Returns the element counts in order.
absl::StatusOr<std::vector<int64_t>> CheckTensors(
    std::span<const TensorSpec> tensors, int num_groups,
    const Options& options);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_TENSOR_RULES_H_
