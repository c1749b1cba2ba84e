#include "tests/sim/error_model.h"

#include <algorithm>
#include <cmath>

namespace ballast::sim {
namespace {

constexpr size_t kCell = 2048;
constexpr int kCalmSteps = 100;

double Error2(const ErrorModel::Sent& sent, size_t begin, size_t end) {
  double error2 = 0;
  for (size_t i = begin; i < end; ++i) {
    const double error = double{sent.arrives[i]} - double{sent.meant[i]};
    error2 += error * error;
  }
  return error2;
}

}  // namespace

double ErrorModel::Sums::Relative(const kernels::ExactSum& error) const {
  const double value = value2.ToDouble();
  return value > 0 ? std::sqrt(error.ToDouble() / value) : 0;
}

void ErrorModel::Add(layout::Path path, int tensor, int64_t step,
                     const Sent& sent, const Sent& narrower,
                     std::span<const float> whole) {
  const size_t num_cells = (whole.size() + kCell - 1) / kCell;
  if (one_in_ == 0 || num_cells == 0) return;
  Sums& sums = sums_[static_cast<size_t>(path)][tensor];
  sums.is_narrower_known = !narrower.arrives.empty();
  const size_t period = std::min<size_t>(one_in_, num_cells);
  for (size_t cell = step % period; cell < num_cells; cell += period) {
    const size_t begin = cell * kCell;
    const size_t end = std::min(whole.size(), begin + kCell);
    double value2 = 0;
    for (size_t i = begin; i < end; ++i) value2 += double{whole[i]} * whole[i];
    const double error2 = Error2(sent, begin, end);
    const double narrower2 =
        sums.is_narrower_known ? Error2(narrower, begin, end) : 0;
    if (!std::isfinite(error2 + value2 + narrower2)) continue;
    sums.error2.Add(error2);
    sums.value2.Add(value2);
    sums.narrower2.Add(narrower2);
    sums.sampled += end - begin;
  }
}

ErrorModel::Outcome ErrorModel::Close(bool is_skipped) {
  Outcome outcome;
  for (const layout::Path path : layout::kPaths) {
    auto& tensors = sums_[static_cast<size_t>(path)];
    Sums whole;
    for (const auto& [tensor, sums] : tensors) {
      if (is_skipped) break;
      whole.error2.Merge(sums.error2);
      whole.value2.Merge(sums.value2);
      whole.sampled += sums.sampled;
      const std::pair key(path, tensor);
      if (budget_ == 0) continue;
      if (sums.Relative(sums.error2) > budget_) {
        calm_[key] = 0;
        outcome.wider[key] = 1;
      } else if (sums.is_narrower_known &&
                 sums.Relative(sums.narrower2) <= budget_ / 2) {
        if (++calm_[key] < kCalmSteps) continue;
        calm_[key] = 0;
        outcome.wider[key] = -1;
      } else {
        calm_[key] = 0;
      }
    }
    const Quality quality = {.sampled = whole.sampled,
                             .relative_error = whole.Relative(whole.error2)};
    outcome.quality[static_cast<size_t>(path)] = quality;
    outcome.relative_error =
        std::max(outcome.relative_error, quality.relative_error);
    tensors.clear();
  }
  return outcome;
}

}  // namespace ballast::sim
