// The oracle's own view of how far what was sent is from what was meant
// (layout/metering.h): whole tensors, no node, bucket or vote.
//
// Threading: thread-compatible.
#ifndef TESTS_SIM_ERROR_MODEL_H_
#define TESTS_SIM_ERROR_MODEL_H_

#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "kernels/exact_sum.h"
#include "server/layout/metering.h"

namespace ballast::sim {

class ErrorModel {
 public:
  // 0: nothing is measured.
  explicit ErrorModel(int64_t one_in) : one_in_(one_in) {}

  // One encoding of a whole tensor in `step`: what was meant, what arrives,
  // and what its error is relative to.
  void Add(layout::Path path, int tensor, int64_t step,
           std::span<const float> meant, std::span<const float> arrives,
           std::span<const float> whole);

  // What the step's record says: of the gradients since the last call, and of
  // the weights that were published before them; the worse.
  double Close(bool is_skipped);

 private:
  struct Sums {
    kernels::ExactSum error2;
    kernels::ExactSum value2;
  };

  double Relative(layout::Path path) const;

  const int64_t one_in_;
  std::array<std::map<int, Sums>, layout::kNumPaths> sums_;  // by tensor
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_ERROR_MODEL_H_
