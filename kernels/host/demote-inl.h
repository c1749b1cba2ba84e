// 32-bit codes to bytes, in order. Highway's own DemoteTo narrows one vector
// at a time; four at a time take a third of the shuffles.
// Compiled once per target: see the toggle.
#include <cstdint>

#include "hwy/highway.h"

#if defined(KERNELS_HOST_DEMOTE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_HOST_DEMOTE_INL_H_
#undef KERNELS_HOST_DEMOTE_INL_H_
#else
#define KERNELS_HOST_DEMOTE_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {

#if HWY_ARCH_X86

// Two vectors to one with saturation, by 128-bit blocks: a0 b0 a1 b1 …
template <class V>
HWY_INLINE V PackBlocks(V a, V b) {
#if HWY_TARGET <= HWY_AVX3
  return V{_mm512_packs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return V{_mm256_packs_epi16(a.raw, b.raw)};
#else
  return V{_mm_packs_epi16(a.raw, b.raw)};
#endif
}

// The lanes of four vectors of int32 as int8, saturated.
template <class D32, class V32>
HWY_INLINE auto ToBytes(D32 d32, const V32* codes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Repartition<int16_t, D32> d16;
  const hn::Repartition<int8_t, D32> d8;
  const auto low = hn::ReorderDemote2To(d16, codes[0], codes[1]);
  const auto high = hn::ReorderDemote2To(d16, codes[2], codes[3]);
  // Block j holds four lanes each of codes 0 to 3, from their blocks j.
  const auto blocks = hn::BitCast(d32, PackBlocks(low, high));
  constexpr int kBlocks = hn::MaxLanes(D32()) / 4;
  HWY_ALIGN static constexpr int32_t kOrder[3][16] = {
      {0, 1, 2, 3},
      {0, 4, 1, 5, 2, 6, 3, 7},
      {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}};
  const auto order = hn::SetTableIndices(d32, kOrder[kBlocks / 2]);
  return hn::BitCast(d8, hn::TableLookupLanes(blocks, order));
}

#else  // !HWY_ARCH_X86

template <class D32, class V32>
HWY_INLINE auto ToBytes(D32 d32, const V32* codes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::Rebind<int8_t, D32> d8;
  const hn::Repartition<int8_t, D32> all;
  HWY_ALIGN int8_t bytes[hn::MaxLanes(all)];
  for (size_t k = 0; k < 4; ++k) {
    hn::Store(hn::DemoteTo(d8, codes[k]), d8, bytes + k * hn::MaxLanes(d32));
  }
  return hn::Load(all, bytes);
}

#endif  // HWY_ARCH_X86

}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // KERNELS_HOST_DEMOTE_INL_H_
