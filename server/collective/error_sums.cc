#include "server/collective/error_sums.h"

#include <array>
#include <cmath>

#include "kernels/codec.h"

namespace ballast::collective {
namespace {

// No codec takes more for a cell than fp32 and a scale per 32 elements.
constexpr int64_t kMaxCellBytes = kernels::kCellElements * 5;

}  // namespace

double ErrorSums::Relative() const {
  const double value = value2.ToDouble();
  return value > 0 ? std::sqrt(error2.ToDouble() / value) : 0;
}

void SampleCell(const Codec& codec, const Run& cell, const float* values,
                const float* whole, ErrorSums* sums) {
  alignas(64) std::array<std::byte, kMaxCellBytes> bytes;
  alignas(64) std::array<float, kernels::kCellElements> decoded;
  if (cell.count > kernels::kCellElements ||
      codec.EncodedBytes(cell.count) > kMaxCellBytes) {
    return;
  }
  codec.Encode(cell, values, bytes.data());
  codec.Decode(cell.count, bytes.data(), decoded.data());
  double error2 = 0;
  double value2 = 0;
  for (int64_t i = 0; i < cell.count; ++i) {
    const double error = double{decoded[i]} - values[i];
    error2 += error * error;
    value2 += double{whole[i]} * whole[i];
  }
  if (!std::isfinite(error2) || !std::isfinite(value2)) return;
  sums->error2.Add(error2);
  sums->value2.Add(value2);
  sums->sampled += cell.count;
  sums->clipped += codec.CountClipped(cell, values);
}

}  // namespace ballast::collective
