// Element types of gradients and published weights. Masters, moments and
// reduced gradients are always fp32.
#ifndef KERNELS_DTYPE_H_
#define KERNELS_DTYPE_H_

#include <cstdint>
#include <string_view>

namespace ballast::kernels {

enum class DType : uint8_t {  // values are on the wire and in files
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
};

constexpr int SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "unknown";
}

}  // namespace ballast::kernels

#endif  // KERNELS_DTYPE_H_
