#include "server/engine/error_votes.h"

#include <span>

#include "kernels/exact_sum.h"

namespace ballast::engine {
namespace {

// A sum of fp64 squares has few limbs that are not zero.
void SetLimbs(const kernels::ExactSum& sum, v1::ExactLimbs* limbs) {
  const std::span<const uint64_t> all = sum.limbs();
  size_t first = 0;
  size_t end = all.size();
  while (first < end && all[first] == 0) ++first;
  while (end > first && all[end - 1] == 0) --end;
  limbs->set_first(static_cast<uint32_t>(first));
  for (size_t i = first; i < end; ++i) limbs->add_limbs(all[i]);
}

}  // namespace

v1::PathErrors ToPathErrors(const collective::PathErrors& errors) {
  v1::PathErrors proto;
  proto.set_first(errors.first);
  for (const collective::ErrorSums& sums : errors.tensors) {
    v1::TensorErrors* const tensor = proto.add_tensors();
    SetLimbs(sums.error2, tensor->mutable_error2());
    SetLimbs(sums.value2, tensor->mutable_value2());
    tensor->set_sampled(sums.sampled);
    tensor->set_clipped(sums.clipped);
  }
  return proto;
}

}  // namespace ballast::engine
