// Vectors of fp32 from and to memory of any element type, by FORMAT.md 6.
// Compiled once per target: see the toggle.
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/dtype.h"
#include "kernels/float_formats.h"

#if defined(KERNELS_HOST_FLOAT_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KERNELS_HOST_FLOAT_FORMATS_INL_H_
#undef KERNELS_HOST_FLOAT_FORMATS_INL_H_
#else
#define KERNELS_HOST_FLOAT_FORMATS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {

// One struct per element type: Vec and One load element i of `base` widened,
// Store casts.

struct Float32 {
  static constexpr DType kDType = DType::kFloat32;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Vec(D d, const void* base,
                                                   int64_t i) {
    return hwy::HWY_NAMESPACE::LoadU(d, static_cast<const float*>(base) + i);
  }
  static float One(const void* base, int64_t i) {
    return static_cast<const float*>(base)[i];
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V v, void* base, int64_t i) {
    hwy::HWY_NAMESPACE::StoreU(v, d, static_cast<float*>(base) + i);
  }
};

struct BFloat16 {
  static constexpr DType kDType = DType::kBFloat16;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Vec(D d, const void* base,
                                                   int64_t i) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const auto half = hn::LoadU(d16, static_cast<const uint16_t*>(base) + i);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
  }
  static float One(const void* base, int64_t i) {
    return BFloat16ToFloat(static_cast<const uint16_t*>(base)[i]);
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V v, void* base, int64_t i) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> di32;
    const auto bits = hn::BitCast(d32, v);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(d32, 1));
    const auto rounded =
        hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
    const auto quiet = hn::Or(high, hn::Set(d32, 0x0040));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
    // Both fit 16 bits, so that the saturation of DemoteTo does nothing.
    const auto half = hn::BitCast(di32, hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(d16, half), d16, static_cast<uint16_t*>(base) + i);
  }
};

// By the processor where it converts as FORMAT.md says (F16C rounds to even,
// keeps subnormals whatever the mode, makes NaN quiet), element by element
// where it does not know fp16.
struct Float16 {
  static constexpr DType kDType = DType::kFloat16;
  static constexpr bool kInHardware = HWY_TARGET <= HWY_AVX2;
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> Vec(D d, const void* base,
                                                   int64_t i) {
    namespace hn = hwy::HWY_NAMESPACE;
    if constexpr (kInHardware) {
      const hn::Rebind<hwy::float16_t, D> d16;
      const hn::Rebind<uint16_t, D> du16;
      const auto half = hn::LoadU(du16, static_cast<const uint16_t*>(base) + i);
      return hn::PromoteTo(d, hn::BitCast(d16, half));
    } else {
      HWY_ALIGN float wide[hn::MaxLanes(D())];
      for (size_t j = 0; j < hn::MaxLanes(d); ++j) wide[j] = One(base, i + j);
      return hn::Load(d, wide);
    }
  }
  static float One(const void* base, int64_t i) {
    return Float16ToFloat(static_cast<const uint16_t*>(base)[i]);
  }
  template <class D, class V>
  static HWY_INLINE void Store(D d, V v, void* base, int64_t i) {
    namespace hn = hwy::HWY_NAMESPACE;
    auto* const out = static_cast<uint16_t*>(base) + i;
    if constexpr (kInHardware) {
      const hn::Rebind<hwy::float16_t, D> d16;
      const hn::Rebind<uint16_t, D> du16;
      hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, v)), du16, out);
    } else {
      HWY_ALIGN float wide[hn::MaxLanes(D())];
      hn::Store(v, d, wide);
      for (size_t j = 0; j < hn::MaxLanes(d); ++j) {
        out[j] = Float16FromFloat(wide[j]);
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#endif  // KERNELS_HOST_FLOAT_FORMATS_INL_H_
