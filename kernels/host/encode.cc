#include "kernels/host/encode.h"

#include <algorithm>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/float_formats.h"
#include "kernels/host/prefetch.h"
#include "kernels/stochastic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/encode.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/host/demote-inl.h"
#include "kernels/host/dispatch.h"
#include "kernels/host/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ballast::kernels::host {
namespace HWY_NAMESPACE {
namespace {
#if HWY_TARGET == HWY_SCALAR
void Fill(Kernels*) {}
#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int kLanes = hn::MaxLanes(D());
constexpr int kGroupVectors = kHadamardElements / kLanes;

constexpr uint32_t kTinyBits = 0x03800000u;      // 2^-120
constexpr uint32_t kInfinityBits = 0x7f800000u;  // and NaN above it
constexpr uint32_t kNaNScale = 0x7fc00000u;
constexpr int kPackElements = 128;  // a vector packs at most this many codes

// Counts below are multiples of 32 (blocks are; a short cell is padded with
// zeros, which change neither absmax nor another element's code).

// The bits of the largest magnitude; with kRotate the rotated elements go to
// `rotated`.
template <bool kRotate>
HWY_INLINE uint32_t LargestMagnitude(const float* x, int count,
                                     float* rotated) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Set(di, 0x7fffffff);
  hn::Vec<decltype(di)> largest[kGroupVectors];
  HWY_UNROLL(8) for (auto& lanes : largest) lanes = hn::Zero(di);
  for (int i = 0; i < count; i += kHadamardElements) {
    PrefetchAhead<kHadamardElements * 4>(x + i);
    V group[kGroupVectors];
    HWY_UNROLL(8) for (int k = 0; k < kGroupVectors; ++k) {
      group[k] = hn::LoadU(d, x + i + k * kLanes);
    }
    if constexpr (kRotate) Rotate(d, group);
    HWY_UNROLL(8) for (int k = 0; k < kGroupVectors; ++k) {
      if constexpr (kRotate) hn::StoreU(group[k], d, rotated + i + k * kLanes);
      largest[k] =
          hn::Max(largest[k], hn::And(hn::BitCast(di, group[k]), magnitude));
    }
  }
  HWY_UNROLL(8) for (int k = 1; k < kGroupVectors; ++k) {
    largest[0] = hn::Max(largest[0], largest[k]);
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest[0])));
}

// Both roundings give the codes of one vector of y = x * inv_scale.

// Nearest even: the sum with 1.5 * 2^23 has no bits below 1, its low bits are
// the code. |y| is at most the divisor and its rounding, so that only clip16's
// highest code can be passed: by one, which the saturation of ToBytes (8 bits)
// or the packing takes back.
struct Nearest {
  Nearest(const CodecSpec&, uint64_t) {}
  HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Code(V y, int) const {
    const D d;
    const hn::RebindToSigned<D> di;
    const auto magic = hn::Set(d, 0x1.8p23f);
    return hn::Sub(hn::BitCast(di, hn::Add(y, magic)), hn::BitCast(di, magic));
  }
};

// FORMAT.md 3 and 5, in 32-bit operations: |y| < 2^24, so that its whole part
// goes through an integer, and the rest behind it is exact.
struct Stochastic {
  using DI = hn::RebindToSigned<D>;
  using DU = hn::RebindToUnsigned<D>;
  Stochastic(const CodecSpec& spec, uint64_t cell_key)
      : low(hn::Set(DU(), static_cast<uint32_t>(cell_key))),
        high(hn::Set(DU(), static_cast<uint32_t>(cell_key >> 32))),
        highest(hn::Set(DI(), (1 << (spec.bits - 1)) - 1)),
        lowest(hn::Set(DI(), spec.range == Range::kSym
                                 ? 1 - (1 << (spec.bits - 1))
                                 : -(1 << (spec.bits - 1)))) {}

  // Of elements [index, index + kLanes) of the cell.
  HWY_INLINE V Uniform(int index) const {
    const DU du;
    const DI di;
    const auto i = hn::Iota(du, static_cast<uint32_t>(index));
    auto x = hn::Add(low, hn::Mul(i, hn::Set(du, 0x9e3779b9u)));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    x = hn::Xor(hn::Mul(x, hn::Set(du, 0x7feb352du)), high);
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    x = hn::Mul(x, hn::Set(du, 0x846ca68bu));
    x = hn::ShiftRight<8>(hn::Xor(x, hn::ShiftRight<16>(x)));
    return hn::Mul(hn::ConvertTo(D(), hn::BitCast(di, x)),
                   hn::Set(D(), 0x1p-24f));
  }

  HWY_INLINE hn::Vec<DI> Code(V y, int index) const {
    const D d;
    const DI di;
    const V magnitude = hn::Abs(y);
    const auto whole = hn::ConvertTo(di, magnitude);  // towards zero
    const V rest = hn::Sub(magnitude, hn::ConvertTo(d, whole));
    const auto up = hn::VecFromMask(d, hn::Lt(Uniform(index), rest));
    const auto code = hn::Sub(whole, hn::BitCast(di, up));
    const auto sign = hn::ShiftRight<31>(hn::BitCast(di, y));
    const auto signed_code = hn::Sub(hn::Xor(code, sign), sign);
    return hn::Min(hn::Max(signed_code, lowest), highest);
  }

  hn::Vec<DU> low, high;
  hn::Vec<DI> highest, lowest;
};

// Elements from `index` of the cell on.
template <class Round>
HWY_INLINE void Quantize(const Round& round, const float* x, int index,
                         int count, float inv_scale, int8_t* codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Repartition<int8_t, D> d8;
  const hn::Half<decltype(d8)> half8;
  constexpr int kStep = 4 * kLanes;
  const auto inv = hn::Set(d, inv_scale);
  const auto code_of = [&](int i) HWY_ATTR {
    return round.Code(hn::Mul(hn::LoadU(d, x + i), inv), index + i);
  };
  hn::Vec<decltype(di)> code[4];
  int i = 0;
  for (; i + kStep <= count; i += kStep) {
    HWY_UNROLL(4) for (int k = 0; k < 4; ++k) code[k] = code_of(i + k * kLanes);
    hn::StoreU(ToBytes(di, code), d8, codes + i);
  }
  if (i == count) return;
  // Two vectors are left: a group of 32 where vectors have 16 lanes.
  code[0] = code[2] = code_of(i);
  code[1] = code[3] = code_of(i + kLanes);
  hn::StoreU(hn::LowerHalf(half8, ToBytes(di, code)), half8, codes + i);
}

// Codes of one block, from element `index` of the cell on; returns its scale.
template <bool kRotate, class Round>
HWY_INLINE float EncodeBlock(const CodecSpec& spec, const Round& round,
                             const float* x, int index, int count,
                             float* rotated, int8_t* codes) {
  const uint32_t largest = LargestMagnitude<kRotate>(x, count, rotated);
  if (largest < kTinyBits || largest >= kInfinityBits) {
    std::memset(codes, 0, count);
    return largest < kTinyBits ? 1.0f : FromBits(kNaNScale);
  }
  const int half = 1 << (spec.bits - 1);
  const auto divisor =
      static_cast<float>(spec.range == Range::kSym ? half - 1 : half);
  const float absmax = FromBits(largest);
  Quantize(round, kRotate ? rotated : x, index, count, divisor / absmax, codes);
  return absmax / divisor;
}

// Codes of whole bytes to 4 bits each: byte i is code 2i | code 2i+1 << 4.
void Pack4(const int8_t* codes, int count, uint8_t* out) {
  const hn::CappedTag<uint16_t, 32> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  constexpr int kPairs = hn::MaxLanes(d16);
  const auto low = hn::Set(d16, 0x000f);
  const auto high = hn::Set(d16, 0x00f0);
  const hn::Repartition<int8_t, decltype(d16)> codes8;
  for (int i = 0; i < count; i += 2 * kPairs) {
    const auto cut = hn::Min(hn::LoadU(codes8, codes + i), hn::Set(codes8, 7));
    const auto pair = hn::BitCast(d16, cut);
    const auto byte =
        hn::Or(hn::And(pair, low), hn::And(hn::ShiftRight<4>(pair), high));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di16, byte)), d8, out + i / 2);
  }
}

// To 2 bits each: byte i is codes 4i … 4i+3, the first lowest.
void Pack2(const int8_t* codes, int count, uint8_t* out) {
  const hn::CappedTag<uint32_t, 16> d32;
  const hn::RebindToSigned<decltype(d32)> di32;
  const hn::Rebind<uint8_t, decltype(d32)> d8;
  const hn::Repartition<int8_t, decltype(d32)> codes8;
  constexpr int kQuads = hn::MaxLanes(d32);
  for (int i = 0; i < count; i += 4 * kQuads) {
    const auto cut = hn::Min(hn::LoadU(codes8, codes + i), hn::Set(codes8, 1));
    const auto quad = hn::BitCast(d32, cut);
    const auto first = hn::And(quad, hn::Set(d32, 0x03));
    const auto second = hn::And(hn::ShiftRight<6>(quad), hn::Set(d32, 0x0c));
    const auto third = hn::And(hn::ShiftRight<12>(quad), hn::Set(d32, 0x30));
    const auto fourth = hn::And(hn::ShiftRight<18>(quad), hn::Set(d32, 0xc0));
    const auto byte = hn::Or(hn::Or(first, second), hn::Or(third, fourth));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di32, byte)), d8, out + i / 4);
  }
}

// One cell of whole groups. Writes codes up to the next multiple of 128.
template <bool kRotate, class Round>
void EncodeCell(const CodecSpec& spec, uint64_t cell_key, const float* x,
                int count, uint8_t* scales_out, uint8_t* codes_out) {
  const Round round(spec, cell_key);
  HWY_ALIGN float rotated[kCellElements];
  HWY_ALIGN int8_t local[kCellElements + kPackElements];
  int8_t* const codes =
      spec.bits == 8 ? reinterpret_cast<int8_t*>(codes_out) : local;
  for (int i = 0; i < count; i += spec.block) {
    for (int b = 0; b < spec.block * spec.bits / 8; b += 64) {
      PrefetchAhead<64>(codes_out + i * spec.bits / 8 + b);
    }
    const float scale = EncodeBlock<kRotate>(spec, round, x + i, i,
                                             std::min(spec.block, count - i),
                                             rotated, codes + i);
    std::memcpy(scales_out + i / spec.block * sizeof(scale), &scale,
                sizeof(scale));
  }
  if (spec.bits == 8) return;
  std::memset(local + count, 0, kPackElements);
  if (spec.bits == 4) Pack4(local, count, codes_out);
  if (spec.bits == 2) Pack2(local, count, codes_out);
}

// The last cell of a tensor: a copy, padded with zeros to whole vectors and
// rotated here, because the groups of its last block may be smaller.
template <class Round>
void EncodeShortCell(const CodecSpec& spec, uint64_t cell_key, const float* x,
                     int count, uint8_t* scales_out, uint8_t* codes_out) {
  HWY_ALIGN float padded[kCellElements] = {};
  HWY_ALIGN uint8_t codes[kCellElements + kPackElements];
  std::copy_n(x, count, padded);
  if (spec.hadamard != 0) {
    for (int i = 0; i < count; i += spec.block) {
      RotateBlock(D(), std::min(spec.block, count - i), padded + i);
    }
  }
  const int end = (count + kHadamardElements - 1) & -kHadamardElements;
  EncodeCell<false, Round>(spec, cell_key, padded, end, scales_out, codes);
  std::memcpy(codes_out, codes, (count * spec.bits + 7) / 8);
}

template <class Round>
void EncodeCells(const CodecSpec& spec, uint64_t key, int64_t first,
                 int64_t count, const float* in, uint8_t* scales,
                 uint8_t* codes) {
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const uint64_t cell_key = CellKey(key, (first + begin) / kCellElements);
    uint8_t* const scales_out = scales + begin / spec.block * sizeof(float);
    uint8_t* const codes_out = codes + begin * spec.bits / 8;
    if (count - begin < kCellElements) {
      EncodeShortCell<Round>(spec, cell_key, in + begin,
                             static_cast<int>(count - begin), scales_out,
                             codes_out);
    } else if (spec.hadamard != 0) {
      EncodeCell<true, Round>(spec, cell_key, in + begin, kCellElements,
                              scales_out, codes_out);
    } else {
      EncodeCell<false, Round>(spec, cell_key, in + begin, kCellElements,
                               scales_out, codes_out);
    }
  }
}

void Encode(const CodecSpec& spec, uint64_t key, int64_t first, int64_t count,
            const float* in, uint8_t* out) {
  if (count == 0) return;  // `out` may be null
  uint8_t* const codes = out + CodesOffset(spec, count);
  // Gaps are zero: a reused buffer leaks nothing.
  std::fill(out + NumBlocks(spec, count) * sizeof(float), codes, uint8_t{0});
  std::fill(codes + (count * spec.bits + 7) / 8,
            out + EncodedBytes(spec, count), uint8_t{0});
  if (spec.rounding == Rounding::kStochastic) {
    EncodeCells<Stochastic>(spec, key, first, count, in, out, codes);
  } else {
    EncodeCells<Nearest>(spec, key, first, count, in, out, codes);
  }
}

void Fill(Kernels* table) { table->encode = Encode; }

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddEncode(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
