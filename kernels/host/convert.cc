#include "kernels/host/convert.h"

#include <cstring>

#include "kernels/host/prefetch.h"
#include "kernels/reference/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/convert.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/host/dispatch.h"
#include "kernels/host/float_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {
namespace {
#if HWY_TARGET == HWY_SCALAR
void Fill(Kernels*) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
constexpr int64_t kLanes = hn::MaxLanes(D());

template <class Format>
void CastTo(const float* in, int64_t count, void* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    PrefetchAhead<kLanes * 4>(in + i);
    PrefetchAhead<kLanes * 2>(static_cast<char*>(out) + i * 2);
    Format::Store(d, hn::LoadU(d, in + i), out, i);
  }
  Reference().cast(in + i, Format::kDType, count - i,
                   static_cast<char*>(out) + i * SizeOf(Format::kDType));
}

template <class Format>
void WidenFrom(const void* in, int64_t count, float* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(Format::Vec(d, in, i), d, out + i);
  }
  for (; i < count; ++i) out[i] = Format::One(in, i);
}

void Cast(const float* in, DType dtype, int64_t count, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memmove(out, in, count * sizeof(float));
      return;
    case DType::kBFloat16:
      return CastTo<BFloat16>(in, count, out);
    case DType::kFloat16:
      return CastTo<Float16>(in, count, out);
  }
}

void Widen(const void* in, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memmove(out, in, count * sizeof(float));
      return;
    case DType::kBFloat16:
      return WidenFrom<BFloat16>(in, count, out);
    case DType::kFloat16:
      return WidenFrom<Float16>(in, count, out);
  }
}

// What a delta starts from: FORMAT.md 9.
template <class Format>
HWY_INLINE hn::Vec<D> FiniteVec(D d, const void* base, int64_t i) {
  const auto wide = Format::Vec(d, base, i);
  return hn::IfThenElseZero(hn::IsFinite(wide), wide);
}
template <class Format>
float FiniteOne(const void* base, int64_t i) {
  const float wide = Format::One(base, i);
  return IsFinite(wide) ? wide : 0;
}

template <class Format>
void FiniteFrom(const void* in, int64_t count, float* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(FiniteVec<Format>(d, in, i), d, out + i);
  }
  for (; i < count; ++i) out[i] = FiniteOne<Format>(in, i);
}

void FiniteOnly(const void* in, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kFloat32:
      return FiniteFrom<Float32>(in, count, out);
    case DType::kBFloat16:
      return FiniteFrom<BFloat16>(in, count, out);
    case DType::kFloat16:
      return FiniteFrom<Float16>(in, count, out);
  }
}

template <class Format>
void SubtractFormat(const float* x, const void* base, int64_t count,
                    float* out) {
  const D d;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::Sub(hn::LoadU(d, x + i), FiniteVec<Format>(d, base, i)), d,
               out + i);
  }
  for (; i < count; ++i) out[i] = x[i] - FiniteOne<Format>(base, i);
}

void Subtract(const float* x, const void* base, DType dtype, int64_t count,
              float* out) {
  switch (dtype) {
    case DType::kFloat32:
      return SubtractFormat<Float32>(x, base, count, out);
    case DType::kBFloat16:
      return SubtractFormat<BFloat16>(x, base, count, out);
    case DType::kFloat16:
      return SubtractFormat<Float16>(x, base, count, out);
  }
}

void Fill(Kernels* table) {
  table->cast = Cast;
  table->widen = Widen;
  table->reference = FiniteOnly;
  table->subtract = Subtract;
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddConvert(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
