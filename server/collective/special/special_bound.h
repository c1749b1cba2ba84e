// How far an encoded value may be from what was meant, in double precision and
// block by block: what kernels/FORMAT.md 3 and 4 promise, without a line of
// what encodes.
#ifndef SERVER_COLLECTIVE_SPECIAL_SPECIAL_BOUND_H_
#define SERVER_COLLECTIVE_SPECIAL_SPECIAL_BOUND_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/codec.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/policy.h"

namespace ballast::collective {

// In groups of `group` values: the forward rotation, its order apart.
inline void Rotate(std::vector<double>* block, size_t group) {
  std::vector<double>& x = *block;
  for (size_t s = 1; s < group; s *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & s) != 0) continue;
      const double a = x[i];
      x[i] = a + x[i + s];
      x[i + s] = a - x[i + s];
    }
  }
}

// Of one block. fp32 sums of a rotation lose a few last places of the largest.
inline std::vector<double> BlockBound(const kernels::CodecSpec& spec,
                                      std::vector<double> values) {
  const bool is_rotated = spec.hadamard != 0;
  const size_t group =
      is_rotated ? std::gcd(values.size(), size_t{32}) : size_t{1};
  if (is_rotated) Rotate(&values, group);
  double absmax = 0;
  for (const double y : values) absmax = std::max(absmax, std::abs(y));
  const bool is_clip = spec.range == kernels::Range::kClip16;
  const double divisor = (1 << (spec.bits - 1)) - (is_clip ? 0 : 1);
  const double step = absmax / divisor;
  const double rounding =
      (spec.rounding == kernels::Rounding::kNearest ? 0.5 : 1) + 0x1p-13;
  for (double& y : values) {
    const double clipped =
        is_clip ? std::max(0.0, y - step * (divisor - 1)) : 0;
    y = absmax < 0x1p-120 ? std::abs(y)
                          : rounding * step + clipped + 0x1p-20 * absmax;
  }
  for (size_t begin = 0; begin < values.size(); begin += group) {
    const auto first = values.begin() + static_cast<int64_t>(begin);
    const auto last = first + static_cast<int64_t>(group);
    std::fill(first, last,
              std::accumulate(first, last, 0.0) / static_cast<double>(group));
  }
  return values;
}

// Of a whole tensor; 0 where it is not quantized.
inline std::vector<double> Bound(const layout::CodecChoice& choice,
                                 const std::vector<float>& values) {
  std::vector<double> bound(values.size());
  if (!choice.quantizes()) return bound;
  const auto size = static_cast<size_t>(choice.block.block);
  for (size_t begin = 0; begin < values.size(); begin += size) {
    const size_t end = std::min(values.size(), begin + size);
    const std::vector<double> block =
        BlockBound(choice.block, {values.begin() + static_cast<int64_t>(begin),
                                  values.begin() + static_cast<int64_t>(end)});
    std::ranges::copy(block, bound.begin() + static_cast<int64_t>(begin));
  }
  return bound;
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_SPECIAL_SPECIAL_BOUND_H_
