#include "kernels/reference/convert.h"

#include <algorithm>
#include <cstring>

#include "kernels/float_formats.h"

namespace ballast::kernels::reference {

void Cast(const float* in, DType dtype, int64_t count, void* out) {
  auto* const halves = static_cast<uint16_t*>(out);
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memmove(out, in, count * sizeof(float));
      return;
    case DType::kBFloat16:
      for (int64_t i = 0; i < count; ++i) halves[i] = BFloat16FromFloat(in[i]);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < count; ++i) halves[i] = Float16FromFloat(in[i]);
      return;
  }
}

void Widen(const void* in, DType dtype, int64_t count, float* out) {
  const auto* const halves = static_cast<const uint16_t*>(in);
  switch (dtype) {
    case DType::kFloat32:
      if (count > 0) std::memmove(out, in, count * sizeof(float));
      return;
    case DType::kBFloat16:
      for (int64_t i = 0; i < count; ++i) out[i] = BFloat16ToFloat(halves[i]);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < count; ++i) out[i] = Float16ToFloat(halves[i]);
      return;
  }
}

void FiniteOnly(const void* in, DType dtype, int64_t count, float* out) {
  Widen(in, dtype, count, out);
  for (int64_t i = 0; i < count; ++i) {
    if (!IsFinite(out[i])) out[i] = 0;
  }
}

void Subtract(const float* x, const void* base, DType dtype, int64_t count,
              float* out) {
  constexpr int64_t kFew = 64;
  float widened[kFew];
  const auto* const bytes = static_cast<const char*>(base);
  for (int64_t i = 0; i < count; i += kFew) {
    const int64_t few = std::min(kFew, count - i);
    FiniteOnly(bytes + i * SizeOf(dtype), dtype, few, widened);
    for (int64_t j = 0; j < few; ++j) out[i + j] = x[i + j] - widened[j];
  }
}

}  // namespace ballast::kernels::reference
