// What an encoded run of cells is: its parameters, their name on the wire and
// its size. The arithmetic is behind kernels.h; FORMAT.md is the contract.
#ifndef KERNELS_CODEC_H_
#define KERNELS_CODEC_H_

#include <cstdint>

namespace ballast::kernels {

// Elements of one tensor; the last cell of a tensor may be shorter.
inline constexpr int64_t kCellElements = 2048;
inline constexpr int kHadamardElements = 32;
inline constexpr int64_t kRunAlignment = 16;  // bytes; of codes and of a run
inline constexpr int kFormatVersion = 1;

enum class Range : uint8_t {  // values are on the wire
  kSym = 1,                   // codes -(2^(b-1) - 1) … 2^(b-1) - 1
  kClip16 = 2,  // codes -2^(b-1) … 2^(b-1) - 1; the positive extreme is cut
};

enum class Rounding : uint8_t {  // values are on the wire
  kNearest = 1,                  // ties to even
  kStochastic = 2,
};

struct CodecSpec {
  int bits = 4;     // 8, 4 or 2
  int block = 128;  // a power of two in [32, 2048]
  Range range = Range::kSym;
  int hadamard = 0;  // 0 or 32
  Rounding rounding = Rounding::kNearest;
  bool operator==(const CodecSpec&) const = default;
};

bool IsValid(const CodecSpec& spec);

// The spec as 8 bytes on the wire. Unpack refuses (false, *spec unchanged)
// another version, nibble order or anything that is not valid.
uint64_t PackSpec(const CodecSpec& spec);
bool UnpackSpec(uint64_t wire, CodecSpec* spec);

// Elements of a Hadamard group in a block of `count` (FORMAT.md 4): the
// largest power of two that divides it, at most 32.
constexpr int HadamardGroup(int count) {
  const int divisor = count & -count;
  return divisor < kHadamardElements ? divisor : kHadamardElements;
}

// A run is `count` elements of one tensor that start at a cell boundary:
//
//   | scales, fp32, one per block | 0… to 16 | codes, packed | 0… to 16 |
//
// The spec is valid; 0 elements take 0 bytes.
int64_t NumBlocks(const CodecSpec& spec, int64_t count);
int64_t CodesOffset(const CodecSpec& spec, int64_t count);
int64_t EncodedBytes(const CodecSpec& spec, int64_t count);

}  // namespace ballast::kernels

#endif  // KERNELS_CODEC_H_
