// Bits of bf16 and fp16 to and from fp32, by integer arithmetic alone, so
// that every machine and compiler gives the same bits (FORMAT.md, "Element
// types"): nearest-even, overflow to infinity, NaN stays a quiet NaN.
#ifndef KERNELS_FLOAT_FORMATS_H_
#define KERNELS_FLOAT_FORMATS_H_

#include <bit>
#include <cstdint>

namespace ballast::kernels {

constexpr uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
constexpr float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// By exponent bits: neither NaN nor infinite.
constexpr bool IsFinite(float value) {
  return (Bits(value) & 0x7f800000u) != 0x7f800000u;
}

constexpr float BFloat16ToFloat(uint16_t bits) {
  return FromBits(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = Bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) {  // infinite or NaN
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return FromBits(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent != 0) {
    return FromBits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  if (mantissa == 0) return FromBits(sign);
  // Subnormal: mantissa * 2^-24, normalised.
  const int shift = std::countl_zero(mantissa) - 21;
  return FromBits(sign | ((113u - shift) << 23) |
                  (((mantissa << shift) & 0x3ffu) << 13));
}

constexpr uint16_t Float16FromFloat(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x47800000u) {  // 2^16 and beyond
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // < 2^-25
  // The kept mantissa has 10 bits, fewer below 2^-14; `drop` bits go.
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const bool subnormal = exponent < -14;
  const int drop = subnormal ? -1 - exponent : 13;
  const uint32_t full =
      subnormal ? (magnitude & 0x7fffffu) | 0x800000u : magnitude - 0x38000000u;
  const uint32_t half = (1u << (drop - 1)) - 1u + ((full >> drop) & 1u);
  return static_cast<uint16_t>(sign | ((full + half) >> drop));
}

}  // namespace ballast::kernels

#endif  // KERNELS_FLOAT_FORMATS_H_
