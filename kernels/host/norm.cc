#include "kernels/host/norm.h"

#include <cmath>

#include "kernels/host/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/host/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {
namespace {
#if HWY_TARGET == HWY_SCALAR
void Fill(Kernels*) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
constexpr int kNormLanes = 8;  // FORMAT.md 7: element i to lane i mod 8

// Squares of finite floats and their sums stay finite in double, and an
// infinity or NaN stays one: the sum itself says whether all were finite.
CellNorm NormOfCell(const float* x, int64_t count) {
  const hn::CappedTag<double, kNormLanes> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr int kLanes = hn::MaxLanes(d);
  constexpr int kVectors = kNormLanes / kLanes;
  hn::Vec<decltype(d)> sums[kVectors];
  HWY_UNROLL(8) for (auto& sum : sums) sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kNormLanes <= count; i += kNormLanes) {
    PrefetchAhead<kNormLanes * 4>(x + i);
    HWY_UNROLL(8) for (int k = 0; k < kVectors; ++k) {
      const auto wide = hn::PromoteTo(d, hn::LoadU(df, x + i + k * kLanes));
      sums[k] = hn::Add(sums[k], hn::Mul(wide, wide));
    }
  }
  HWY_ALIGN double lanes[kNormLanes];
  HWY_UNROLL(8)
  for (int k = 0; k < kVectors; ++k) hn::Store(sums[k], d, lanes + k * kLanes);
  for (int j = 0; i < count; ++i, ++j) {
    const double wide = x[i];
    lanes[j] += wide * wide;
  }
  for (const int half : {4, 2, 1}) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  if (!std::isfinite(lanes[0])) return {.norm2 = 0, .finite = false};
  return {.norm2 = lanes[0], .finite = true};
}

void Fill(Kernels* table) { table->cell_norm = NormOfCell; }

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddNorm(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
