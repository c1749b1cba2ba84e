#include "server/layout/tensor_rules.h"

#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::layout {
namespace {

constexpr int kMaxGroups = 256;  // proto::kMaxParamGroups

std::string Quoted(const TensorSpec& tensor) {
  return absl::StrCat("tensor ", base::Quoted(tensor.name));
}

bool IsKnown(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
    case kernels::DType::kBFloat16:
    case kernels::DType::kFloat16:
      return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<int64_t> NumElements(const TensorSpec& tensor,
                                    int64_t max_elements) {
  if (tensor.shape.size() > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(tensor), " has ", tensor.shape.size(),
                     " dimensions; at most ", kMaxDimensions, " are allowed"));
  }
  bool is_empty = false;
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(tensor), " has dimension ", extent,
                       "; dimensions must not be negative"));
    }
    is_empty |= extent == 0;
  }
  if (is_empty) return 0;
  int64_t product = 1;
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(product, extent, &product) ||
        product > max_elements) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(tensor), " has more than ", max_elements,
                       " elements, the bound for one job"));
    }
  }
  return product;
}

absl::Status CheckTopology(const Topology& topology) {
  if (topology.num_nodes < 1 || topology.num_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", topology.num_nodes, " nodes: between 1 and ",
                     kMaxNodes, " are allowed"));
  }
  if (topology.local_world_size < 1 ||
      topology.local_world_size > kMaxLocalWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", topology.local_world_size,
                     " workers per node: between 1 and ", kMaxLocalWorldSize,
                     " are allowed"));
  }
  if (topology.partition_nodes < 0 ||
      (topology.partition_nodes > 0 &&
       topology.num_nodes % topology.partition_nodes != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "partition groups of ", topology.partition_nodes,
        " nodes do not divide a job of ", topology.num_nodes, " nodes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> CheckTensors(
    std::span<const TensorSpec> tensors, int num_groups,
    const Options& options) {
  if (tensors.size() > static_cast<size_t>(options.max_tensors)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", tensors.size(), " tensors; at most ",
                     options.max_tensors, " are allowed"));
  }
  if (num_groups < 1 || num_groups > kMaxGroups) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job of ", num_groups, " param groups: between 1 and ",
                     kMaxGroups, " are allowed"));
  }
  std::vector<int64_t> sizes;
  sizes.reserve(tensors.size());
  absl::flat_hash_map<std::string_view, size_t> first_use;
  first_use.reserve(tensors.size());
  int64_t left = options.max_elements;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    RETURN_IF_ERROR(base::CheckTensorName(tensor.name));
    const auto [it, is_new] = first_use.emplace(tensor.name, i);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensors ", it->second, " and ", i, " have the same name ",
          base::Quoted(tensor.name), "; names must be unique in a job"));
    }
    if (!IsKnown(tensor.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          Quoted(tensor), " has unknown dtype ", static_cast<int>(tensor.dtype),
          "; known are float32, bfloat16, float16"));
    }
    if (tensor.group < 0 || tensor.group >= num_groups) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(tensor), " is in param group ", tensor.group,
                       "; the job has ", num_groups, ", counted from 0"));
    }
    ASSIGN_OR_RETURN(const int64_t size,
                     NumElements(tensor, options.max_elements));
    if (size > left) {
      return absl::InvalidArgumentError(
          absl::StrCat("with ", Quoted(tensor), " the job has more than ",
                       options.max_elements, " elements, the bound for a job"));
    }
    left -= size;
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace ballast::layout
