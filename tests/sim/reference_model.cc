#include "tests/sim/reference_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"
#include "tests/sim/gradients.h"

namespace ballast::sim {

ReferenceModel::ReferenceModel(const Scenario& scenario) : scenario_(scenario) {
  for (const layout::TensorSpec& spec : scenario.tensors) {
    TensorState tensor;
    tensor.spec = spec;
    tensor.size = 1;
    for (const int64_t extent : spec.shape) tensor.size *= extent;
    tensor.weights = InitialWeights(spec, tensor.size);
    tensor.master.resize(tensor.size);
    kernels::Reference().widen(tensor.weights.data(), spec.dtype, tensor.size,
                               tensor.master.data());
    tensor.m.resize(tensor.size);
    tensor.v.resize(tensor.size);
    tensors_.push_back(std::move(tensor));
  }
  outcomes_.push_back({.hash = HashWeights()});
}

uint64_t ReferenceModel::HashWeights() const {
  uint64_t hash = 0;
  for (const TensorState& tensor : tensors_) {
    hash = Hash(tensor.weights.data(), tensor.weights.size(), hash);
  }
  return hash;
}

uint64_t ReferenceModel::WeightsHash(int64_t step) {
  while (static_cast<int64_t>(outcomes_.size()) <= step) Step();
  return outcomes_[step].hash;
}
bool ReferenceModel::WasSkipped(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].skipped;
}
double ReferenceModel::GradNorm(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].norm;
}

std::vector<float> ReferenceModel::MeanGradient(const TensorState& tensor,
                                                int64_t step,
                                                bool* is_finite) const {
  const kernels::Kernels& k = kernels::Reference();
  const int world_size = scenario_.world_size();
  std::vector<std::vector<std::byte>> gradients(world_size);
  std::vector<const void*> sources;
  for (int rank = 0; rank < world_size; ++rank) {
    gradients[rank].resize(tensor.weights.size());
    ComputeGradient(tensor.spec, rank, step, 0, tensor.size,
                    tensor.weights.data(), gradients[rank].data());
    sources.push_back(gradients[rank].data());
  }
  std::vector<float> mean(tensor.size);
  k.tree_sum(tensor.spec.dtype, sources, tensor.size, mean.data());
  for (float& x : mean) x /= static_cast<float>(world_size);
  *is_finite = std::all_of(mean.begin(), mean.end(),
                           [](float x) { return std::isfinite(x); });
  return mean;
}

void ReferenceModel::Step() {
  const kernels::Kernels& k = kernels::Reference();
  const auto step = static_cast<int64_t>(outcomes_.size());
  Outcome outcome;
  for (const Fault& fault : scenario_.faults) {
    const bool is_bad =
        fault.kind == Fault::Kind::kNan || fault.kind == Fault::Kind::kInfinity;
    if (is_bad && fault.step == step) outcome.skipped = true;
  }
  kernels::ExactSum norm2;
  std::vector<std::vector<float>> means(tensors_.size());
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (!tensors_[t].spec.trainable) continue;
    bool is_finite = true;
    means[t] = MeanGradient(tensors_[t], step, &is_finite);
    if (!is_finite) outcome.skipped = true;
    for (int64_t i = 0; i < tensors_[t].size; i += layout::kCellElements) {
      const int64_t count =
          std::min(layout::kCellElements, tensors_[t].size - i);
      norm2.Add(k.cell_norm(means[t].data() + i, count).norm2);
    }
  }
  if (!outcome.skipped) {
    ++optimizer_step_;
    outcome.norm = std::sqrt(norm2.ToDouble());
    const float clip = kernels::ClipFactor(norm2.ToDouble(), scenario_.clip);
    for (size_t t = 0; t < tensors_.size(); ++t) {
      TensorState& tensor = tensors_[t];
      if (!tensor.spec.trainable) continue;
      const kernels::StepScalars scalars = kernels::PrepareScalars(
          scenario_.optimizer, scenario_.groups[tensor.spec.group],
          optimizer_step_, clip);
      const bool is_sgd = scenario_.optimizer == kernels::OptimizerKind::kSgd;
      const bool has_m = !is_sgd || (scalars.flags & kernels::kFlagMomentum);
      k.optimizer_step(scenario_.optimizer, scalars, tensor.size,
                       means[t].data(), tensor.master.data(),
                       has_m ? tensor.m.data() : nullptr,
                       is_sgd ? nullptr : tensor.v.data(), tensor.spec.dtype,
                       tensor.weights.data());
    }
  }
  outcome.hash = HashWeights();
  outcomes_.push_back(outcome);
}

}  // namespace ballast::sim
