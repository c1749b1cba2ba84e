// What users call an optimizer, in configurations and messages.
#ifndef KERNELS_OPTIMIZER_NAME_H_
#define KERNELS_OPTIMIZER_NAME_H_

#include <string_view>

#include "kernels/hyper_parameters.h"

namespace ballast::kernels {

constexpr std::string_view Name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kLion:
      return "lion";
    case OptimizerKind::kAdagrad:
      return "adagrad";
  }
  return "unknown";
}

}  // namespace ballast::kernels

#endif  // KERNELS_OPTIMIZER_NAME_H_
