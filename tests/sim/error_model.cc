#include "tests/sim/error_model.h"

#include <algorithm>
#include <cmath>

namespace ballast::sim {

void ErrorModel::Add(layout::Path path, int tensor, int64_t step,
                     std::span<const float> meant,
                     std::span<const float> arrives,
                     std::span<const float> whole) {
  constexpr size_t kCell = 2048;
  const size_t num_cells = (meant.size() + kCell - 1) / kCell;
  if (one_in_ == 0 || num_cells == 0) return;
  Sums& sums = sums_[static_cast<size_t>(path)][tensor];
  const size_t period = std::min<size_t>(one_in_, num_cells);
  for (size_t cell = step % period; cell < num_cells; cell += period) {
    const size_t end = std::min(meant.size(), (cell + 1) * kCell);
    double error2 = 0;
    double value2 = 0;
    for (size_t i = cell * kCell; i < end; ++i) {
      const double error = double{arrives[i]} - double{meant[i]};
      error2 += error * error;
      value2 += double{whole[i]} * double{whole[i]};
    }
    if (!std::isfinite(error2) || !std::isfinite(value2)) continue;
    sums.error2.Add(error2);
    sums.value2.Add(value2);
  }
}

double ErrorModel::Close(bool is_skipped) {
  double worst = 0;
  for (const layout::Path path : layout::kPaths) {
    if (!is_skipped) worst = std::max(worst, Relative(path));
    sums_[static_cast<size_t>(path)].clear();
  }
  return worst;
}

double ErrorModel::Relative(layout::Path path) const {
  Sums whole;
  for (const auto& [tensor, sums] : sums_[static_cast<size_t>(path)]) {
    whole.error2.Merge(sums.error2);
    whole.value2.Merge(sums.value2);
  }
  const double value2 = whole.value2.ToDouble();
  return value2 > 0 ? std::sqrt(whole.error2.ToDouble() / value2) : 0;
}

}  // namespace ballast::sim
