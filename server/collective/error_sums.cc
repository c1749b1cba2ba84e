#include "server/collective/error_sums.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/codec.h"

namespace ballast::collective {
namespace {

// No codec takes more for a cell than fp32 and a scale per 32 elements.
constexpr int64_t kMaxCellBytes = kernels::kCellElements * 5;

}  // namespace

double ErrorSums::Relative() const {
  return value2 > 0 ? std::sqrt(error2 / value2) : 0;
}

ErrorSums Sample(const Codec& codec, const Run& run, const float* values,
                 const float* whole) {
  alignas(64) std::array<std::byte, kMaxCellBytes> bytes;
  alignas(64) std::array<float, kernels::kCellElements> decoded;
  Run cell = run;
  cell.count = std::min(run.count, kernels::kCellElements);
  ErrorSums sums;
  if (codec.EncodedBytes(cell.count) > kMaxCellBytes) return sums;
  if (!codec.traits().is_exact) {
    codec.Encode(cell, values, bytes.data());
    codec.Decode(cell.count, bytes.data(), decoded.data());
  }
  for (int64_t i = 0; i < cell.count; ++i) {
    const double value = values[i];
    const double error = codec.traits().is_exact ? 0 : decoded[i] - value;
    sums.error2 += error * error;
    sums.value2 += static_cast<double>(whole[i]) * whole[i];
  }
  const bool is_finite =
      std::isfinite(sums.error2) && std::isfinite(sums.value2);
  return is_finite ? sums : ErrorSums();
}

}  // namespace ballast::collective
