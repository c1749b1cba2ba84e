#include "server/collective/error_sums.h"

#include <array>
#include <cmath>

#include "kernels/codec.h"

namespace ballast::collective {
namespace {

double Error2(const Codec& codec, const Run& cell, const float* values) {
  alignas(64) std::array<std::byte, kMaxCellBytes> bytes;
  alignas(64) std::array<float, kernels::kCellElements> decoded;
  codec.Encode(cell, values, bytes.data());
  codec.Decode(cell.count, bytes.data(), decoded.data());
  double error2 = 0;
  for (int64_t i = 0; i < cell.count; ++i) {
    const double error = double{decoded[i]} - values[i];
    error2 += error * error;
  }
  return error2;
}

}  // namespace

double ErrorSums::Relative() const {
  const double value = value2.ToDouble();
  return value > 0 ? std::sqrt(error2.ToDouble() / value) : 0;
}

bool FitsMeter(const Codec& codec) {
  for (int64_t count = 1; count <= kernels::kCellElements; ++count) {
    if (codec.EncodedBytes(count) > kMaxCellBytes) return false;
  }
  return true;
}

void SampleCell(const Codec& codec, const Alternative& narrower,
                const Run& cell, const float* values, const float* whole,
                ErrorSums* sums) {
  if (cell.count > kernels::kCellElements) return;
  double value2 = 0;
  for (int64_t i = 0; i < cell.count; ++i) {
    value2 += double{whole[i]} * whole[i];
  }
  const double error2 = Error2(codec, cell, values);
  const double narrower_error2 =
      narrower.codec != nullptr ? Error2(*narrower.codec, cell, narrower.values)
                                : 0;
  if (!std::isfinite(error2) || !std::isfinite(value2) ||
      !std::isfinite(narrower_error2)) {
    return;
  }
  sums->error2.Add(error2);
  sums->value2.Add(value2);
  sums->narrower_error2.Add(narrower_error2);
  sums->sampled += cell.count;
  sums->clipped += codec.CountClipped(cell, values);
}

}  // namespace ballast::collective
