// From hyperparameters (double, as the user wrote them) to the fp32 scalars
// of one step. Done once per step and group by the coordinator, whose commit
// carries the bits: nobody else calls pow, so no two nodes can differ by a
// libm (DESIGN 6.8). FORMAT.md, "Optimizers", has the formulas.
#ifndef KERNELS_HYPER_PARAMETERS_H_
#define KERNELS_HYPER_PARAMETERS_H_

#include <cstdint>
#include <type_traits>

namespace ballast::kernels {

enum class OptimizerKind : uint8_t {  // values are on the wire and in files
  kSgd = 1,
  kAdam = 2,
  kAdamW = 3,
  kLion = 4,
  kAdagrad = 5,
};

constexpr bool IsKnown(OptimizerKind kind) {
  return kind >= OptimizerKind::kSgd && kind <= OptimizerKind::kAdagrad;
}

// fp32 arrays of a shard beside the master: m (a momentum, or adagrad's sum
// of squares), and v. `any_momentum`: some group of the job has a momentum
// that is not zero.
constexpr int StateArrays(OptimizerKind kind, bool any_momentum) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return any_momentum ? 1 : 0;
    case OptimizerKind::kLion:
    case OptimizerKind::kAdagrad:
      return 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      break;
  }
  return 2;
}

struct HyperParameters {  // PyTorch's names and meanings
  double lr = 1e-3;
  double beta1 = 0.9;  // adam, adamw, lion
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;  // sgd
  double dampening = 0;
  bool nesterov = false;
  double lr_decay = 0;  // adagrad
  double initial_accumulator_value = 0;
  bool operator==(const HyperParameters&) const = default;
};

// Bits of StepScalars::flags.
inline constexpr uint32_t kFlagMomentum = 1;   // sgd: there is a buffer
inline constexpr uint32_t kFlagFirstStep = 2;  // what m holds does not count
inline constexpr uint32_t kFlagNesterov = 4;   // sgd

// Plain bits: the commit carries them as they are, little-endian.
struct StepScalars {
  float clip = 1;             // multiplies the mean gradient first
  float step_size = 0;        // lr, corrected by the step number
  float weight_decay = 0;     // g += weight_decay * w, unless zero
  float decay = 1;            // w *= decay, that is 1 - lr * weight_decay
  float beta1 = 0;            // sgd: momentum
  float one_minus_beta1 = 1;  // sgd: 1 - dampening
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  uint32_t flags = 0;
  float initial = 0;  // adagrad: m before the first step
  bool operator==(const StepScalars&) const = default;
};
static_assert(std::is_trivially_copyable_v<StepScalars> &&
              sizeof(StepScalars) == 48);

// `optimizer_step` counts the steps that were applied, 1 is the first:
// skipped steps do not count.
StepScalars PrepareScalars(OptimizerKind kind, const HyperParameters& hyper,
                           int64_t optimizer_step, float clip);

// PyTorch's min(1, max_norm / (norm + 1e-6)) with norm = sqrt(norm2), in
// double, rounded once. 1 if max_norm is not positive (no clipping).
float ClipFactor(double norm2, double max_norm);

}  // namespace ballast::kernels

#endif  // KERNELS_HYPER_PARAMETERS_H_
