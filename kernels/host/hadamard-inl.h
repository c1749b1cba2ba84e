// The rotation of FORMAT.md 4 on one group of 32 elements in registers.
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

// `group` is 32 elements in ascending order.
template <class D, class V>
HWY_INLINE void Rotate(D d, V* group) {
  RotateStage<1>(d, group);
  RotateStage<2>(d, group);
  RotateStage<4>(d, group);
  RotateStage<8>(d, group);
  RotateStage<16>(d, group);
}

}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // KERNELS_HOST_HADAMARD_INL_H_
