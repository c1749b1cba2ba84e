#include "tests/sim/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "kernels/codec.h"
#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic.h"
#include "tests/sim/gradients.h"

namespace ballast::sim {

ReferenceModel::ReferenceModel(const Scenario& scenario)
    : scenario_(scenario),
      policy_(*layout::ParsePolicy(scenario.exchange)),
      errors_(policy_) {
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
    tensor.index = static_cast<int>(tensors_.size());
    tensors_.push_back(std::move(tensor));
  }
  Keep({});
  TakeShape(1);
}

void ReferenceModel::TakeShape(int64_t step) {
  Scenario::Shape shape{INT64_MAX, scenario_.nodes, scenario_.workers};
  for (const Scenario::Shape& earlier : scenario_.earlier) {
    if (step > earlier.last_step) continue;
    shape = earlier;
    break;
  }
  if (shape.last_step == shape_.last_step) return;
  if (shape_.last_step != 0) MoveResiduals(shape.nodes);
  shape_ = shape;
  owners_ =
      policy_.partition_nodes == 0 ? shape.nodes : policy_.partition_nodes;
  SetCodecs();
}

void ReferenceModel::SetCodecs() {
  codes_gradients_ = false;
  for (TensorState& tensor : tensors_) {
    layout::TensorCodecs codecs;
    if (shape_.nodes > 1 && tensor.spec.trainable) {  // alone, nothing is sent
      codecs = layout::CodecsOf(policy_, tensor.spec.name, tensor.size);
      if (owners_ == 1) codecs.weights = {};  // they stay where they are
      codes_gradients_ |= tensor.size > 0 && codecs.gradients.quantizes();
    }
    // What a budget has widened stays.
    if (codecs.gradients == tensor.policy_codecs.gradients &&
        codecs.weights == tensor.policy_codecs.weights) {
      continue;
    }
    tensor.codecs = tensor.policy_codecs = codecs;
  }
}

// On fewer nodes the first of them takes what is too many (snapshot/loader.h).
void ReferenceModel::MoveResiduals(int num_nodes) {
  for (TensorState& tensor : tensors_) {
    const int surplus =
        std::max(0, static_cast<int>(tensor.residuals.size()) - num_nodes);
    std::vector<std::vector<float>> moved(num_nodes);
    for (size_t n = 0; n < tensor.residuals.size(); ++n) {
      const int to = std::max(0, static_cast<int>(n) - surplus);
      const std::vector<float>& from = tensor.residuals[n];
      if (moved[to].empty()) {
        moved[to] = from;
        continue;
      }
      for (size_t i = 0; i < from.size(); ++i) moved[to][i] += from[i];
    }
    tensor.residuals = tensor.left_over = std::move(moved);
  }
}

void ReferenceModel::Keep(Outcome outcome) {
  for (const TensorState& tensor : tensors_) {
    outcome.hash =
        Hash(tensor.weights.data(), tensor.weights.size(), outcome.hash);
    outcome.weights.push_back(tensor.weights);
  }
  outcomes_.push_back(std::move(outcome));
}

uint64_t ReferenceModel::WeightsHash(int64_t step) {
  while (static_cast<int64_t>(outcomes_.size()) <= step) Step();
  return outcomes_[step].hash;
}
std::span<const std::byte> ReferenceModel::Weights(int64_t step,
                                                   TensorId tensor) {
  WeightsHash(step);
  return outcomes_[step].weights[tensor.value()];
}
bool ReferenceModel::WasSkipped(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].skipped;
}
double ReferenceModel::GradNorm(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].norm;
}

double ReferenceModel::RelativeError(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].relative_error;
}

uint32_t ReferenceModel::Fallbacks(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].fallbacks;
}

const ReferenceModel::StepQuality& ReferenceModel::Quality(int64_t step) {
  WeightsHash(step);
  return outcomes_[step].quality;
}

std::vector<double> ReferenceModel::ResidualNorms() const {
  if (!policy_.error_feedback || owners_ == 1) return {};
  std::vector<double> norms(shape_.nodes);
  bool is_encoded = false;  // if anything is: small tensors may not be
  for (const TensorState& tensor : tensors_) {
    if (!tensor.policy_codecs.gradients.quantizes()) continue;
    is_encoded = is_encoded || (tensor.spec.trainable && tensor.size > 0);
    for (size_t node = 0; node < tensor.left_over.size(); ++node) {
      for (const float x : tensor.left_over[node]) {
        norms[node] += double{x} * x;
      }
    }
  }
  if (!is_encoded) return {};
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

void ReferenceModel::ThereAndBack(const TensorState& tensor,
                                  const layout::CodecChoice& choice,
                                  int64_t step, int hop,
                                  std::vector<float>* values) const {
  if (!choice.quantizes()) return;
  const uint64_t key = kernels::StochasticKey(
      policy_.seed, kernels::JobKey(kJobName), tensor.index, step, hop);
  const auto count = static_cast<int64_t>(values->size());
  std::vector<uint8_t> bytes(kernels::EncodedBytes(choice.block, count));
  kernels::Reference().encode(choice.block, key, 0, count, values->data(),
                              bytes.data());
  kernels::Reference().decode(choice.block, count, bytes.data(),
                              values->data());
}

std::vector<float> ReferenceModel::Narrower(const TensorState& tensor,
                                            layout::Path path, int64_t step,
                                            int hop,
                                            std::vector<float> values) const {
  const layout::CodecChoice& choice = tensor.codecs.on(path);
  const layout::CodecChoice& policy = tensor.policy_codecs.on(path);
  if (choice == policy) return {};
  ThereAndBack(tensor, policy.With(layout::Narrower(choice.codec)), step, hop,
               &values);
  return values;
}

void ReferenceModel::PublishWeights(TensorState* tensor, int64_t step,
                                    std::span<const std::byte> before) {
  const kernels::Kernels& k = kernels::Reference();
  if (!tensor->policy_codecs.weights.quantizes()) return;
  const bool is_delta = policy_.weight_mode == layout::WeightMode::kDelta;
  std::vector<float> shown(tensor->size);
  std::vector<float> meant = tensor->master;
  if (is_delta) {
    k.reference(before.data(), tensor->spec.dtype, tensor->size, shown.data());
    for (size_t i = 0; i < shown.size(); ++i) meant[i] -= shown[i];
  }
  const int hop = shape_.nodes;
  const std::vector<float> narrower =
      Narrower(*tensor, layout::Path::kWeights, step, hop, meant);
  std::vector<float> arrives = meant;
  if (tensor->codecs.weights.quantizes()) {
    ThereAndBack(*tensor, tensor->codecs.weights, step, hop, &arrives);
    std::vector<float> published = arrives;
    for (size_t i = 0; i < shown.size(); ++i) {
      if (is_delta) published[i] += shown[i];
    }
    k.cast(published.data(), tensor->spec.dtype, tensor->size,
           tensor->weights.data());
    errors_.Add(layout::Path::kWeights, tensor->index, step, {meant, arrives},
                {meant, narrower}, tensor->master);
    return;
  }
  // As they are: the step has cast them.
  k.widen(tensor->weights.data(), tensor->spec.dtype, tensor->size,
          arrives.data());
  errors_.Add(layout::Path::kWeights, tensor->index, step,
              {tensor->master, arrives}, {meant, narrower}, tensor->master);
}

std::vector<float> ReferenceModel::Sum(const TensorState& tensor, int64_t step,
                                       int first_rank, int num_ranks) const {
  std::vector<std::vector<std::byte>> gradients(num_ranks);
  std::vector<const void*> sources;
  for (int i = 0; i < num_ranks; ++i) {
    gradients[i].resize(tensor.weights.size());
    ComputeGradient(tensor.spec, first_rank + i, step, 0, tensor.size,
                    tensor.weights.data(), gradients[i].data());
    sources.push_back(gradients[i].data());
  }
  std::vector<float> sum(tensor.size);
  kernels::Reference().tree_sum(tensor.spec.dtype, sources, tensor.size,
                                sum.data());
  return sum;
}

void ReferenceModel::SendGradient(const TensorState& tensor, int64_t step,
                                  int hop, std::vector<float>* values) {
  const std::vector<float> meant = *values;
  ThereAndBack(tensor, tensor.codecs.gradients, step, hop, values);
  if (!tensor.policy_codecs.gradients.quantizes()) return;
  const std::vector<float> narrower =
      Narrower(tensor, layout::Path::kGradients, step, hop, meant);
  errors_.Add(layout::Path::kGradients, tensor.index, step, {meant, *values},
              {meant, narrower}, meant);
}

std::vector<float> ReferenceModel::NodeSum(TensorState* state, int64_t step,
                                           int node) {
  const TensorState& tensor = *state;
  std::vector<float> sum =
      Sum(tensor, step, node * shape_.workers, shape_.workers);
  if (owners_ == 1) return sum;  // its group's; nobody else owns anything
  const bool feeds_back =
      policy_.error_feedback && tensor.policy_codecs.gradients.quantizes();
  state->residuals.resize(shape_.nodes);
  state->left_over.resize(shape_.nodes);
  state->residuals[node].resize(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) {
    if (feeds_back) sum[i] += tensor.residuals[node][i];
  }
  state->left_over[node] = sum;
  SendGradient(tensor, step, node, &sum);
  for (size_t i = 0; i < sum.size(); ++i) {
    state->left_over[node][i] -= sum[i];
  }
  return sum;
}

std::vector<float> ReferenceModel::GroupSum(TensorState* tensor, int64_t step,
                                            int group) {
  std::vector<float> sum = NodeSum(tensor, step, group * owners_);
  for (int node = group * owners_ + 1; node < (group + 1) * owners_; ++node) {
    const std::vector<float> more = NodeSum(tensor, step, node);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }
  if (owners_ < shape_.nodes) {
    SendGradient(*tensor, step, shape_.nodes + 1 + group, &sum);
  }
  return sum;
}

std::vector<float> ReferenceModel::MeanGradient(TensorState* tensor,
                                                int64_t step, bool* is_finite) {
  const int world_size = shape_.world_size();
  std::vector<float> mean;
  if (!codes_gradients_) {
    mean = Sum(*tensor, step, 0, world_size);
  } else {
    mean = GroupSum(tensor, step, 0);
    for (int group = 1; group < shape_.nodes / owners_; ++group) {
      const std::vector<float> more = GroupSum(tensor, step, group);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += more[i];
    }
  }
  for (float& x : mean) x /= static_cast<float>(world_size);
  *is_finite = std::all_of(mean.begin(), mean.end(),
                           [](float x) { return std::isfinite(x); });
  return mean;
}

void ReferenceModel::CloseErrors(Outcome* outcome) {
  const auto count = [&](layout::Path path) {
    for (const TensorState& tensor : tensors_) {
      const bool is_wider =
          tensor.codecs.on(path) != tensor.policy_codecs.on(path);
      outcome->fallbacks += is_wider ? 1 : 0;
      outcome->quality.num_wider[static_cast<size_t>(path)] += is_wider ? 1 : 0;
    }
  };
  count(layout::Path::kGradients);
  const ErrorModel::Outcome errors = errors_.Close(outcome->skipped);
  outcome->relative_error = errors.relative_error;
  outcome->quality.paths = errors.quality;
  if (!outcome->skipped) outcome->quality.residual_norms = ResidualNorms();
  for (const auto& [key, wider] : errors.wider) {
    TensorState& tensor = tensors_[key.second];
    layout::CodecChoice& choice = tensor.codecs.on(key.first);
    layout::CodecId codec = choice.codec;
    for (int i = 0; i < std::abs(wider); ++i) {
      codec = wider > 0 ? layout::Wider(codec) : layout::Narrower(codec);
    }
    choice = tensor.policy_codecs.on(key.first).With(codec);
  }
  count(layout::Path::kWeights);
}

void ReferenceModel::LoadStep(int64_t step, bool resets_state) {
  for (TensorState& tensor : tensors_) {
    if (!tensor.spec.trainable) continue;
    LoadedWeights(tensor.spec, step, 0, tensor.size, tensor.weights.data());
    kernels::Reference().widen(tensor.weights.data(), tensor.spec.dtype,
                               tensor.size, tensor.master.data());
    if (!resets_state) continue;
    std::ranges::fill(tensor.m, 0.0f);
    std::ranges::fill(tensor.v, 0.0f);
    for (auto* kept : {&tensor.residuals, &tensor.left_over}) {
      for (std::vector<float>& node : *kept) std::ranges::fill(node, 0.0f);
    }
  }
  if (resets_state) optimizer_step_ = 0;
  // What was sent meanwhile is measured for nobody.
  Outcome outcome;
  outcome.skipped = true;
  CloseErrors(&outcome);
  outcome.skipped = false;
  Keep(std::move(outcome));
}

void ReferenceModel::Step() {
  const kernels::Kernels& k = kernels::Reference();
  const auto step = static_cast<int64_t>(outcomes_.size());
  TakeShape(step);
  if (const auto load = scenario_.loads.find(step);
      load != scenario_.loads.end()) {
    return LoadStep(step, load->second);
  }
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
    means[t] = MeanGradient(&tensors_[t], step, &is_finite);
    if (!is_finite) outcome.skipped = true;
    for (int64_t i = 0; i < tensors_[t].size; i += layout::kCellElements) {
      const int64_t count =
          std::min(layout::kCellElements, tensors_[t].size - i);
      norm2.Add(k.cell_norm(means[t].data() + i, count).norm2);
    }
  }
  CloseErrors(&outcome);
  if (!outcome.skipped) {
    ++optimizer_step_;
    outcome.norm = std::sqrt(norm2.ToDouble());
    const float clip = kernels::ClipFactor(norm2.ToDouble(), scenario_.clip);
    for (size_t t = 0; t < tensors_.size(); ++t) {
      TensorState& tensor = tensors_[t];
      if (!tensor.spec.trainable) continue;
      tensor.residuals = tensor.left_over;
      const kernels::StepScalars scalars = kernels::PrepareScalars(
          scenario_.optimizer, scenario_.groups[tensor.spec.group],
          optimizer_step_, clip);
      const std::vector<std::byte> before = tensor.weights;
      const bool is_sgd = scenario_.optimizer == kernels::OptimizerKind::kSgd;
      const bool has_m = !is_sgd || (scalars.flags & kernels::kFlagMomentum);
      k.optimizer_step(scenario_.optimizer, scalars, tensor.size,
                       means[t].data(), tensor.master.data(),
                       has_m ? tensor.m.data() : nullptr,
                       is_sgd ? nullptr : tensor.v.data(), tensor.spec.dtype,
                       tensor.weights.data());
      PublishWeights(&tensor, step, before);
    }
  }
  Keep(std::move(outcome));
}

}  // namespace ballast::sim
