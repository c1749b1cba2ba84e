#include "server/daemon/weight_load.h"

#include <algorithm>
#include <cstring>

#include "kernels/dtype.h"

namespace ballast::daemon {

void WeightLoad::StartLoad(Step step, bool resets_state) {
  step_ = step;
  resets_state_ = resets_state;
  parts_.optimizer->KeepAll();
  const bool is_taken =
      taken_ == step || (parts_.is_loaded != nullptr && parts_.is_loaded(step));
  if (parts_.job->node() == NodeRank(0) && !is_taken) TakeGradients();
  taken_ = step;
  parts_.collective()->StartBroadcast(NodeRank(0), step);
}

void WeightLoad::TakeGradients() {
  const layout::Layout& layout = parts_.job->layout();
  const auto gradients = parts_.job->gradients(LocalRank(0));
  const auto weights = parts_.job->weights();
  for (size_t t = 0; t < layout.tensors().size(); ++t) {
    const layout::TensorPlace& place = layout.places()[t];
    if (!layout.tensors()[t].trainable || place.num_elements == 0) continue;
    std::memcpy(
        weights.data() + place.weight_offset,
        gradients.data() + place.gradient_offset,
        place.num_elements * kernels::SizeOf(layout.tensors()[t].dtype));
  }
}

void WeightLoad::Finish() {
  parts_.optimizer->InitializeFromWeights(
      resets_state_ ? optimizer::Moments::kZero : optimizer::Moments::kStay);
  if (parts_.published != nullptr) {
    parts_.published->Initialize(parts_.job->weights(),
                                 WeightVersion(step_->value()));
  }
  if (resets_state_ && parts_.residuals != nullptr) ResetResiduals();
  step_.reset();
}

void WeightLoad::ResetResiduals() {
  for (int version = 0; version < 2; ++version) {
    for (const layout::Bucket& bucket : parts_.job->layout().buckets()) {
      if (parts_.guard == nullptr) break;
      parts_.guard->BeforeResiduals(version, bucket.id);
    }
    std::ranges::fill(parts_.residuals->version(version), 0.0f);
  }
}

}  // namespace ballast::daemon
