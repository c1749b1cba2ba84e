#include "server/engine/error_votes.h"

#include <span>

#include "absl/strings/str_cat.h"
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

absl::StatusOr<std::vector<layout::CodecChange>> ParseCodecChanges(
    const v1::Commit& commit) {
  const auto refuse = [&](const char* what, int value, size_t end) {
    return absl::DataLossError(
        absl::StrCat("the commit of step ", commit.step(), " changes a codec ",
                     what, " ", value, ", possible are 0 to ", end - 1));
  };
  constexpr size_t kCodecsEnd = 256;  // fits a CodecId; the plan knows which
  std::vector<layout::CodecChange> changes;
  for (const v1::CodecChange& change : commit.codec_changes()) {
    if (static_cast<size_t>(change.path()) >= layout::kNumPaths) {
      return refuse("on path", change.path(), layout::kNumPaths);
    }
    for (const int codec : {change.from(), change.to()}) {
      if (static_cast<size_t>(codec) >= kCodecsEnd) {
        return refuse("from or to", codec, kCodecsEnd);
      }
    }
    changes.push_back({layout::kPaths[change.path()], TensorId(change.tensor()),
                       static_cast<layout::CodecId>(change.to())});
  }
  return changes;
}

}  // namespace ballast::engine
