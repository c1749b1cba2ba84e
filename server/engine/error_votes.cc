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
    if (sums.narrower_error2 != kernels::ExactSum()) {
      SetLimbs(sums.narrower_error2, tensor->mutable_narrower_error2());
    }
    tensor->set_sampled(sums.sampled);
    tensor->set_clipped(sums.clipped);
  }
  return proto;
}

std::vector<layout::CodecChange> ToCodecChanges(const v1::Commit& commit) {
  // What is out of range stays so.
  const auto narrow = [](int value) {
    return static_cast<uint8_t>(value < 0 || value > 255 ? 255 : value);
  };
  std::vector<layout::CodecChange> changes;
  for (const v1::CodecChange& change : commit.codec_changes()) {
    changes.push_back({static_cast<layout::Path>(narrow(change.path())),
                       TensorId(change.tensor()),
                       static_cast<layout::CodecId>(narrow(change.to()))});
  }
  return changes;
}

}  // namespace ballast::engine
