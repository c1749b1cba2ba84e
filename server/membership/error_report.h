// The errors of what all nodes sent in one step, from their votes: pure
// arithmetic. Sums are exact, so their order and who owns what change no bit.
#ifndef SERVER_MEMBERSHIP_ERROR_REPORT_H_
#define SERVER_MEMBERSHIP_ERROR_REPORT_H_

#include <array>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/exact_sum.h"
#include "proto/peer.pb.h"
#include "server/base/ids.h"
#include "server/layout/metering.h"

namespace ballast::membership {

// The tensors whose error is measured, by path (layout::ExchangePlan); none:
// nothing is.
using MeteredTensors = std::array<std::vector<TensorId>, layout::kNumPaths>;

inline constexpr size_t kMaxWorstTensors = 8;  // in a report

struct TensorErrorSum {
  int index = 0;  // among the metered tensors of the path
  kernels::ExactSum error2;
  kernels::ExactSum value2;
  kernels::ExactSum narrower_error2;  // by the next narrower codec, if tried
  uint64_t sampled = 0;
  uint64_t clipped = 0;

  double Relative() const;  // L2; 0 if there is no value
  double NarrowerRelative() const;
};

using StepErrors = std::array<std::vector<TensorErrorSum>, layout::kNumPaths>;

// DataLoss if a vote's sums are not of the tensors whose turn it is; names
// node and path. `votes` by node rank, all for one step, at least one.
// Of weights there are none if any node has none: nothing was published before
// the step, or a daemon that could not keep them has been replaced since.
absl::StatusOr<StepErrors> SumErrors(const MeteredTensors& metered,
                                     std::span<const v1::Vote* const> votes);

v1::ErrorReport MakeReport(std::span<const TensorId> metered,
                           std::span<const TensorErrorSum> errors);

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_ERROR_REPORT_H_
