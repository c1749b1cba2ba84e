#include "kernels/reference/convert.h"

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

}  // namespace ballast::kernels::reference
