#include "kernels/host/decode.h"

#include <algorithm>
#include <cstring>

#include "kernels/codec.h"
#include "kernels/host/prefetch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host/decode.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
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
constexpr int kUnpackElements = 128;  // a vector unpacks at most this many

// 4-bit codes to whole bytes, for counts that are multiples of 32. Reads and
// writes up to the next multiple of kUnpackElements.
void Unpack4(const uint8_t* in, int count, int8_t* codes) {
  const hn::CappedTag<uint16_t, 32> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const hn::Repartition<int8_t, decltype(d16)> di8;
  constexpr int kPairs = hn::MaxLanes(d16);
  const auto sign = hn::Set(di8, 8);
  for (int i = 0; i < count; i += 2 * kPairs) {
    const auto byte = hn::PromoteTo(d16, hn::LoadU(d8, in + i / 2));
    const auto pair =
        hn::Or(hn::And(byte, hn::Set(d16, 0x000f)),
               hn::And(hn::ShiftLeft<4>(byte), hn::Set(d16, 0x0f00)));
    // Sign extension: (n ^ 8) - 8.
    hn::StoreU(hn::Sub(hn::Xor(hn::BitCast(di8, pair), sign), sign), di8,
               codes + i);
  }
}

void Unpack2(const uint8_t* in, int count, int8_t* codes) {
  const hn::CappedTag<uint32_t, 16> d32;
  const hn::Rebind<uint8_t, decltype(d32)> d8;
  const hn::Repartition<int8_t, decltype(d32)> di8;
  constexpr int kQuads = hn::MaxLanes(d32);
  const auto sign = hn::Set(di8, 2);
  for (int i = 0; i < count; i += 4 * kQuads) {
    const auto byte = hn::PromoteTo(d32, hn::LoadU(d8, in + i / 4));
    const auto quad =
        hn::Or(hn::Or(byte, hn::ShiftLeft<6>(byte)),
               hn::Or(hn::ShiftLeft<12>(byte), hn::ShiftLeft<18>(byte)));
    const auto code = hn::And(quad, hn::Set(d32, 0x03030303u));
    hn::StoreU(hn::Sub(hn::Xor(hn::BitCast(di8, code), sign), sign), di8,
               codes + i);
  }
}

// What becomes of a decoded vector.
struct Put {
  static HWY_INLINE void Write(V value, float* out) {
    hn::StoreU(value, D(), out);
  }
  static void Write(float value, float* out) { *out = value; }
};
struct Add {
  static HWY_INLINE void Write(V value, float* out) {
    hn::StoreU(hn::Add(hn::LoadU(D(), out), value), D(), out);
  }
  static void Write(float value, float* out) { *out += value; }
};

// Whole groups of a cell: codes in bytes, one scale per block.
template <class Sink, bool kRotate>
void DecodeGroups(int block, int count, const uint8_t* scales,
                  const int8_t* codes, float* out) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  for (int begin = 0; begin < count; begin += block) {
    float one;
    std::memcpy(&one, scales + begin / block * sizeof(one), sizeof(one));
    const auto scale = hn::Set(d, one);
    const int end = std::min(begin + block, count);
    for (int i = begin; i < end; i += kHadamardElements) {
      PrefetchAhead<kHadamardElements * 4>(out + i);
      V group[kGroupVectors];
      HWY_UNROLL(8) for (int k = 0; k < kGroupVectors; ++k) {
        const auto code = hn::LoadU(d8, codes + i + k * kLanes);
        group[k] = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, code)), scale);
      }
      if constexpr (kRotate) Rotate(d, group);
      HWY_UNROLL(8) for (int k = 0; k < kGroupVectors; ++k) {
        if constexpr (kRotate) {
          group[k] = hn::Mul(group[k], hn::Set(d, 1.0f / kHadamardElements));
        }
        Sink::Write(group[k], out + i + k * kLanes);
      }
    }
  }
}

// Packed codes of whole groups; may read up to kUnpackElements' bytes.
template <class Sink>
void DecodeCell(const CodecSpec& spec, bool rotate, int count,
                const uint8_t* scales, const uint8_t* packed, float* out) {
  HWY_ALIGN int8_t local[kCellElements + kUnpackElements];
  const int8_t* codes = local;
  if (spec.bits == 8) codes = reinterpret_cast<const int8_t*>(packed);
  if (spec.bits == 4) Unpack4(packed, count, local);
  if (spec.bits == 2) Unpack2(packed, count, local);
  if (rotate) {
    DecodeGroups<Sink, true>(spec.block, count, scales, codes, out);
  } else {
    DecodeGroups<Sink, false>(spec.block, count, scales, codes, out);
  }
}

// The last cell of a tensor: from a padded copy, and its last block, where
// that is not made of whole groups of 32, by way of another.
template <class Sink>
void DecodeShortCell(const CodecSpec& spec, int count, const uint8_t* scales,
                     const uint8_t* packed, float* out) {
  HWY_ALIGN uint8_t padded[kCellElements + kUnpackElements] = {};
  std::memcpy(padded, packed, (count * spec.bits + 7) / 8);
  const bool rotate = spec.hadamard != 0;
  const int size = count % spec.block;  // of a last, short block
  const int whole = size % kHadamardElements == 0 ? count : count - size;
  DecodeCell<Sink>(spec, rotate, whole, scales, padded, out);
  if (whole == count) return;
  HWY_ALIGN float last[kCellElements];
  DecodeCell<Put>(spec, false,
                  (size + kHadamardElements - 1) & -kHadamardElements,
                  scales + whole / spec.block * sizeof(float),
                  padded + whole * spec.bits / 8, last);
  if (rotate) RotateBlock(D(), size, last);
  const float factor = 1.0f / static_cast<float>(HadamardGroup(size));
  for (int i = 0; i < size; ++i) {
    Sink::Write(rotate ? last[i] * factor : last[i], out + whole + i);
  }
}

template <class Sink>
void DecodeRun(const CodecSpec& spec, int64_t count, const uint8_t* in,
               float* out) {
  const uint8_t* const codes = in + CodesOffset(spec, count);
  for (int64_t begin = 0; begin < count; begin += kCellElements) {
    const uint8_t* const scales = in + begin / spec.block * sizeof(float);
    const uint8_t* const packed = codes + begin * spec.bits / 8;
    if (count - begin < kCellElements) {
      DecodeShortCell<Sink>(spec, static_cast<int>(count - begin), scales,
                            packed, out + begin);
    } else {
      DecodeCell<Sink>(spec, spec.hadamard != 0, kCellElements, scales, packed,
                       out + begin);
    }
  }
}

void Fill(Kernels* table) {
  table->decode = DecodeRun<Put>;
  table->decode_add = DecodeRun<Add>;
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ballast::kernels::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ballast::kernels::host {

HWY_EXPORT(Fill);

void AddDecode(int64_t target, Kernels* table) {
  HWY_DISPATCH_TABLE(Fill)[TableIndex(target)](table);
}

}  // namespace ballast::kernels::host
#endif  // HWY_ONCE
