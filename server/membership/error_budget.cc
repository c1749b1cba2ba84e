#include "server/membership/error_budget.h"

#include <optional>

namespace ballast::membership {
namespace {

using layout::CodecId;

// The codec that the tensor has from now on, if it is another.
std::optional<CodecId> Decide(double budget, CodecId policy,
                              const TensorErrorSum& error,
                              TensorBudget* tensor) {
  if (error.sampled == 0) return std::nullopt;
  if (error.Relative() > budget) {
    tensor->calm = 0;
    if (tensor->codec == CodecId::kNone) return std::nullopt;
    return layout::Wider(tensor->codec);
  }
  const bool is_calm = tensor->codec != policy &&
                       error.NarrowerRelative() <= kCalmShare * budget;
  tensor->calm = is_calm ? tensor->calm + 1 : 0;
  if (tensor->calm < kCalmSteps) return std::nullopt;
  tensor->calm = 0;
  return layout::Narrower(tensor->codec);
}

}  // namespace

BudgetState InitialBudgetState(const BudgetRules& rules) {
  BudgetState state;
  for (size_t p = 0; p < layout::kNumPaths; ++p) {
    for (const CodecId codec : rules.codecs[p]) {
      state[p].push_back({.codec = codec});
    }
  }
  return state;
}

std::vector<v1::CodecChange> DecideBudget(const BudgetRules& rules,
                                          const MeteredTensors& metered,
                                          const StepErrors& errors,
                                          BudgetState* state) {
  std::vector<v1::CodecChange> changes;
  if (rules.max_relative_error <= 0) return changes;
  for (size_t p = 0; p < layout::kNumPaths; ++p) {
    for (const TensorErrorSum& error : errors[p]) {
      TensorBudget& tensor = (*state)[p][error.index];
      const std::optional<CodecId> codec =
          Decide(rules.max_relative_error, rules.codecs[p][error.index], error,
                 &tensor);
      if (!codec.has_value()) continue;
      v1::CodecChange& change = changes.emplace_back();
      change.set_path(static_cast<int>(p));
      change.set_tensor(metered[p][error.index].value());
      change.set_from(static_cast<int>(tensor.codec));
      change.set_to(static_cast<int>(*codec));
      change.set_relative_error(error.Relative());
      tensor.codec = *codec;
    }
  }
  return changes;
}

}  // namespace ballast::membership
