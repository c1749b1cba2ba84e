// Which part of what crosses between nodes is compared with what was meant:
// one cell in `one_in` of each quantized tensor, at least one, others in every
// step until all had their turn; of a model with very many quantized tensors
// some in each step. A function of tensor, cell and step alone, so that all
// nodes agree and no cut of buckets, shards or chunks changes a figure.
//
//   step 7, one in 4   cells of a tensor   . . . x . . . x . .
//   step 8                                 x . . . x . . . x .
//
// Threading: plain values and pure functions.
#ifndef SERVER_LAYOUT_METERING_H_
#define SERVER_LAYOUT_METERING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/base/ids.h"

namespace ballast::layout {

// What of a step crosses between nodes; in arrays, gradients first.
enum class Path : uint8_t { kGradients, kWeights };
inline constexpr size_t kNumPaths = 2;
inline constexpr Path kPaths[kNumPaths] = {Path::kGradients, Path::kWeights};

constexpr std::string_view Name(Path path) {
  return path == Path::kGradients ? "gradients" : "weights";
}

inline constexpr int kMaxMeteredTensors = 512;  // per path, in one step
inline constexpr int64_t kDefaultMeteredOneIn = 32;
inline constexpr int64_t kMaxMeteredOneIn = 1 << 20;

// [first, first + count) of the quantized tensors of a path, in layout order,
// for the `turn`-th time.
struct MeterWindow {
  int first = 0;
  int count = 0;
  int64_t turn = 0;

  bool operator==(const MeterWindow&) const = default;
};

inline MeterWindow WindowOf(int num_tensors, Step step) {
  const int num_windows =
      std::max(1, (num_tensors + kMaxMeteredTensors - 1) / kMaxMeteredTensors);
  const int first =
      static_cast<int>(step.value() % num_windows) * kMaxMeteredTensors;
  return {.first = first,
          .count = std::min(kMaxMeteredTensors, num_tensors - first),
          .turn = step.value() / num_windows};
}

// `one_in` > 0; `cell` is one of the tensor's `num_cells`.
inline bool IsSampled(int64_t one_in, int64_t cell, int64_t num_cells,
                      int64_t turn) {
  const int64_t period = std::min(one_in, num_cells);
  return cell % period == turn % period;
}

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_METERING_H_
