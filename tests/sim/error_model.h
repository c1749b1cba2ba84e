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
#include <utility>

#include "kernels/exact_sum.h"
#include "server/layout/metering.h"
#include "server/layout/policy.h"

namespace ballast::sim {

class ErrorModel {
 public:
  explicit ErrorModel(const layout::ExchangePolicy& policy)
      : one_in_(policy.metered_one_in), budget_(policy.max_relative_error) {}

  // One encoding of a whole tensor in `step`: what was meant and what arrives.
  struct Sent {
    std::span<const float> meant;
    std::span<const float> arrives;
  };
  // `narrower`: what one codec narrower would have sent, if it is allowed;
  // `whole`: what errors are relative to.
  void Add(layout::Path path, int tensor, int64_t step, const Sent& sent,
           const Sent& narrower, std::span<const float> whole);

  struct Quality {
    uint64_t sampled = 0;  // elements
    double relative_error = 0;
  };
  // What the step's record says: of the gradients since the last call, and of
  // the weights that were published before them; the worse. And by how many
  // codecs each tensor gets wider (-1: narrower) from now on.
  struct Outcome {
    double relative_error = 0;
    std::array<Quality, layout::kNumPaths> quality{};
    std::map<std::pair<layout::Path, int>, int> wider;
  };
  Outcome Close(bool is_skipped);

 private:
  struct Sums {
    kernels::ExactSum error2;
    kernels::ExactSum value2;
    kernels::ExactSum narrower2;
    uint64_t sampled = 0;
    bool is_narrower_known = false;

    double Relative(const kernels::ExactSum& error) const;
  };

  const int64_t one_in_;
  const double budget_;  // 0: none
  std::map<std::pair<layout::Path, int>, int> calm_;
  std::array<std::map<int, Sums>, layout::kNumPaths> sums_;  // by tensor
};

}  // namespace ballast::sim

#endif  // TESTS_SIM_ERROR_MODEL_H_
