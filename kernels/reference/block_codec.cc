#include "kernels/reference/block_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/float_formats.h"
#include "kernels/stochastic.h"

namespace ballast::kernels::reference {
namespace {

constexpr uint32_t kTinyBits = 0x03800000u;      // 2^-120
constexpr uint32_t kInfinityBits = 0x7f800000u;  // and NaN above it
constexpr uint32_t kNaNScale = 0x7fc00000u;

struct Limits {
  float divisor;  // scale = absmax / divisor
  float lowest;
  float highest;
};

Limits LimitsOf(const CodecSpec& spec) {
  const auto half = static_cast<float>(1 << (spec.bits - 1));
  if (spec.range == Range::kSym) return {half - 1, 1 - half, half - 1};
  return {half, -half, half - 1};
}

// Unnormalised Walsh-Hadamard transform of groups, strides ascending.
void Rotate(int group, int count, float* x) {
  for (int stride = 1; stride < group; stride *= 2) {
    for (int i = 0; i < count; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i];
      const float b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

void RotateBack(int group, int count, float* x) {
  Rotate(group, count, x);
  const float factor = 1.0f / static_cast<float>(group);
  for (int i = 0; i < count; ++i) x[i] *= factor;
}

// Ties to even, for |y| < 2^22: the sum has no bits below 1.
float RoundNearest(float y) { return (y + 0x1.8p23f) - 0x1.8p23f; }

float RoundStochastic(float y, float uniform) {
  const float magnitude = std::fabs(y);
  const auto whole = static_cast<float>(static_cast<int32_t>(magnitude));
  const float up = uniform < magnitude - whole ? 1.0f : 0.0f;
  return std::copysign(whole + up, y);
}

uint32_t LargestMagnitudeBits(const float* x, int count) {
  uint32_t largest = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, Bits(x[i]) & 0x7fffffffu);
  }
  return largest;
}

// Codes of x[0, count), the elements from `index` on of their cell; returns
// the block's scale. Rotates x. Adds to `clipped` what the clamp changed.
float EncodeBlock(const CodecSpec& spec, uint64_t cell_key, int index,
                  int count, float* x, int8_t* codes, int64_t* clipped) {
  if (spec.hadamard != 0) Rotate(HadamardGroup(count), count, x);
  const uint32_t largest = LargestMagnitudeBits(x, count);
  if (largest < kTinyBits || largest >= kInfinityBits) {
    std::fill_n(codes, count, int8_t{0});
    return largest < kTinyBits ? 1.0f : FromBits(kNaNScale);
  }
  const Limits limits = LimitsOf(spec);
  const float absmax = FromBits(largest);
  const float inv_scale = limits.divisor / absmax;
  for (int i = 0; i < count; ++i) {
    const float y = x[i] * inv_scale;
    const float rounded =
        spec.rounding == Rounding::kNearest
            ? RoundNearest(y)
            : RoundStochastic(y, StochasticUniform(cell_key, index + i));
    const float clamped = std::clamp(rounded, limits.lowest, limits.highest);
    if (clamped != rounded) ++*clipped;
    codes[i] = static_cast<int8_t>(clamped);
  }
  return absmax / limits.divisor;
}

// First element in the lowest bits; unused bits of the last byte are zero.
void Pack(int bits, int count, const int8_t* codes, uint8_t* out) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1u;
  for (int i = 0; i < count; i += per_byte) {
    unsigned byte = 0;
    for (int j = 0; j < std::min(per_byte, count - i); ++j) {
      byte |= (static_cast<unsigned>(codes[i + j]) & mask) << (bits * j);
    }
    out[i / per_byte] = static_cast<uint8_t>(byte);
  }
}

int CodeAt(int bits, const uint8_t* packed, int index) {
  const int per_byte = 8 / bits;
  const unsigned byte = packed[index / per_byte];
  const unsigned shifted = byte << (8 - bits * (index % per_byte + 1));
  return static_cast<int8_t>(static_cast<uint8_t>(shifted)) >> (8 - bits);
}

// The values of one cell, rotated back.
void DecodeCell(const CodecSpec& spec, int count, const uint8_t* scales,
                const uint8_t* codes, float* values) {
  for (int begin = 0; begin < count; begin += spec.block) {
    float scale;
    std::memcpy(&scale, scales + begin / spec.block * sizeof(scale),
                sizeof(scale));
    const int end = std::min(count, begin + spec.block);
    for (int i = begin; i < end; ++i) {
      values[i] = static_cast<float>(CodeAt(spec.bits, codes, i)) * scale;
    }
    if (spec.hadamard == 0) continue;
    RotateBack(HadamardGroup(end - begin), end - begin, values + begin);
  }
}

template <typename Sink>
void ForEachDecodedCell(const CodecSpec& spec, int64_t count, const uint8_t* in,
                        Sink sink) {
  const uint8_t* codes = in + CodesOffset(spec, count);
  float values[kCellElements];
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const auto size = static_cast<int>(std::min(kCellElements, count - begin));
    DecodeCell(spec, size, in + begin / spec.block * sizeof(float),
               codes + begin * spec.bits / 8, values);
    sink(begin, size, values);
  }
}

}  // namespace

void Encode(const CodecSpec& spec, uint64_t key, int64_t first, int64_t count,
            const float* in, uint8_t* out) {
  if (count == 0) return;  // `out` may be null
  uint8_t* const codes_out = out + CodesOffset(spec, count);
  // Gaps are zero: a reused buffer leaks nothing.
  std::memset(out, 0, EncodedBytes(spec, count));
  float values[kCellElements];
  int8_t codes[kCellElements];
  int64_t clipped = 0;
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const auto size = static_cast<int>(std::min(kCellElements, count - begin));
    const uint64_t cell_key = CellKey(key, (first + begin) / kCellElements);
    std::copy_n(in + begin, size, values);
    for (int i = 0; i < size; i += spec.block) {
      const float scale =
          EncodeBlock(spec, cell_key, i, std::min(spec.block, size - i),
                      values + i, codes + i, &clipped);
      std::memcpy(out + (begin + i) / spec.block * sizeof(scale), &scale,
                  sizeof(scale));
    }
    Pack(spec.bits, size, codes, codes_out + begin * spec.bits / 8);
  }
}

int64_t CountClipped(const CodecSpec& spec, uint64_t key, int64_t first,
                     int64_t count, const float* in) {
  float values[kCellElements];
  int8_t codes[kCellElements];
  int64_t clipped = 0;
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const auto size = static_cast<int>(std::min(kCellElements, count - begin));
    const uint64_t cell_key = CellKey(key, (first + begin) / kCellElements);
    std::copy_n(in + begin, size, values);
    for (int i = 0; i < size; i += spec.block) {
      EncodeBlock(spec, cell_key, i, std::min(spec.block, size - i), values + i,
                  codes + i, &clipped);
    }
  }
  return clipped;
}

void Decode(const CodecSpec& spec, int64_t count, const uint8_t* in,
            float* out) {
  ForEachDecodedCell(spec, count, in,
                     [out](int64_t begin, int size, const float* values) {
                       std::copy_n(values, size, out + begin);
                     });
}

void DecodeAdd(const CodecSpec& spec, int64_t count, const uint8_t* in,
               float* out) {
  ForEachDecodedCell(spec, count, in,
                     [out](int64_t begin, int size, const float* values) {
                       float* target = out + begin;
                       for (int i = 0; i < size; ++i) target[i] += values[i];
                     });
}

}  // namespace ballast::kernels::reference
