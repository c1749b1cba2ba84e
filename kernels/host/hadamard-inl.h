// The rotation of FORMAT.md 4 on 32 elements in registers: one group, or the
// smaller ones of a short block.
// Compiled once per target: see the toggle.
#include "hwy/highway.h"
#include "kernels/codec.h"

#if defined(KERNELS_HOST_HADAMARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_HOST_HADAMARD_INL_H_
#undef KERNELS_HOST_HADAMARD_INL_H_
#else
#define KERNELS_HOST_HADAMARD_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {

// Lane i of the result is lane i ^ kStride.
template <int kStride, class D, class V>
HWY_INLINE V SwapStride(D d, V v) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kStride == 1) return hn::Reverse2(d, v);
  if constexpr (kStride == 2) return hn::Shuffle1032(v);
  if constexpr (kStride == 4) return hn::SwapAdjacentBlocks(v);
  if constexpr (kStride == 8) return hn::ConcatLowerUpper(d, v, v);
}

// One stage of the transform: a + b where (i & kStride) == 0, a - b behind.
// Partners that share a vector are reached by a swap and a factor of 1 or -1;
// that product is exact, so fusing it with the addition changes no bit.
template <int kStride, class D, class V>
HWY_INLINE void RotateStage(D d, V* group) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr int kLanes = hn::MaxLanes(D());
  constexpr int kVectors = kHadamardElements / kLanes;
  if constexpr (kStride < kLanes) {
    const hn::RebindToUnsigned<D> du;
    const auto lane = hn::And(hn::Iota(du, 0), hn::Set(du, kStride));
    const auto sign =
        hn::IfThenElse(hn::RebindMask(d, hn::Eq(lane, hn::Zero(du))),
                       hn::Set(d, 1.0f), hn::Set(d, -1.0f));
    HWY_UNROLL(8) for (int k = 0; k < kVectors; ++k) {
      group[k] = hn::MulAdd(group[k], sign, SwapStride<kStride>(d, group[k]));
    }
  } else {
    constexpr int kStep = kStride / kLanes;
    HWY_UNROLL(8) for (int k = 0; k < kVectors; ++k) {
      if ((k & kStep) != 0) continue;
      const V a = group[k];
      const V b = group[k + kStep];
      group[k] = hn::Add(a, b);
      group[k + kStep] = hn::Sub(a, b);
    }
  }
}

// `group` is 32 elements in ascending order: groups of kGroup.
template <int kGroup = kHadamardElements, class D, class V>
HWY_INLINE void Rotate(D d, V* group) {
  if constexpr (kGroup > 1) RotateStage<1>(d, group);
  if constexpr (kGroup > 2) RotateStage<2>(d, group);
  if constexpr (kGroup > 4) RotateStage<4>(d, group);
  if constexpr (kGroup > 8) RotateStage<8>(d, group);
  if constexpr (kGroup > 16) RotateStage<16>(d, group);
}

template <int kGroup, class D>
void RotateGroups(D d, int count, float* x) {
  constexpr int kLanes = hwy::HWY_NAMESPACE::MaxLanes(D());
  constexpr int kVectors = kHadamardElements / kLanes;
  for (int i = 0; i < count; i += kHadamardElements) {
    hwy::HWY_NAMESPACE::Vec<D> group[kVectors];
    HWY_UNROLL(8) for (int k = 0; k < kVectors; ++k) {
      group[k] = hwy::HWY_NAMESPACE::LoadU(d, x + i + k * kLanes);
    }
    Rotate<kGroup>(d, group);
    HWY_UNROLL(8) for (int k = 0; k < kVectors; ++k) {
      hwy::HWY_NAMESPACE::StoreU(group[k], d, x + i + k * kLanes);
    }
  }
}

// A block of `count` elements in groups of what divides it, in place. Reads
// and writes to the next multiple of 32; what is there stays apart.
template <class D>
void RotateBlock(D d, int count, float* x) {
  switch (HadamardGroup(count)) {
    case 32:
      return RotateGroups<32>(d, count, x);
    case 16:
      return RotateGroups<16>(d, count, x);
    case 8:
      return RotateGroups<8>(d, count, x);
    case 4:
      return RotateGroups<4>(d, count, x);
    case 2:
      return RotateGroups<2>(d, count, x);
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // KERNELS_HOST_HADAMARD_INL_H_
