#include "kernels/codec.h"

#include <bit>

namespace ballast::kernels {
namespace {

// Byte i of the wire word, least significant first.
enum WireByte {
  kVersion,
  kBits,
  kBlockLog2,
  kRange,
  kHadamard,
  kRounding,
  kNibbleOrder,
  kReserved
};

constexpr uint8_t kFirstElementLow = 1;  // the only nibble order of version 1

uint64_t Put(WireByte byte, uint64_t value) { return value << (8 * byte); }

uint8_t Get(WireByte byte, uint64_t wire) {
  return static_cast<uint8_t>(wire >> (8 * byte));
}

int64_t AlignUp(int64_t bytes) {
  return (bytes + kRunAlignment - 1) / kRunAlignment * kRunAlignment;
}

}  // namespace

bool IsValid(const CodecSpec& spec) {
  return (spec.bits == 8 || spec.bits == 4 || spec.bits == 2) &&
         spec.block >= kHadamardElements && spec.block <= kCellElements &&
         std::has_single_bit(static_cast<unsigned>(spec.block)) &&
         (spec.range == Range::kSym || spec.range == Range::kClip16) &&
         (spec.hadamard == 0 || spec.hadamard == kHadamardElements) &&
         (spec.rounding == Rounding::kNearest ||
          spec.rounding == Rounding::kStochastic);
}

uint64_t PackSpec(const CodecSpec& spec) {
  const auto block = static_cast<unsigned>(spec.block);
  return Put(kVersion, kFormatVersion) | Put(kBits, spec.bits) |
         Put(kBlockLog2, std::countr_zero(block)) |
         Put(kRange, static_cast<uint64_t>(spec.range)) |
         Put(kHadamard, spec.hadamard) |
         Put(kRounding, static_cast<uint64_t>(spec.rounding)) |
         Put(kNibbleOrder, kFirstElementLow);
}

bool UnpackSpec(uint64_t wire, CodecSpec* spec) {
  if (Get(kBlockLog2, wire) > 11) return false;
  CodecSpec read;
  read.bits = Get(kBits, wire);
  read.block = 1 << Get(kBlockLog2, wire);
  read.range = static_cast<Range>(Get(kRange, wire));
  read.hadamard = Get(kHadamard, wire);
  read.rounding = static_cast<Rounding>(Get(kRounding, wire));
  // Packing again compares the version, nibble order and reserved byte too.
  if (!IsValid(read) || PackSpec(read) != wire) return false;
  *spec = read;
  return true;
}

int64_t NumBlocks(const CodecSpec& spec, int64_t count) {
  // `block` divides a cell, so cells in between change nothing.
  return (count + spec.block - 1) / spec.block;
}

int64_t CodesOffset(const CodecSpec& spec, int64_t count) {
  return AlignUp(NumBlocks(spec, count) * 4);
}

int64_t EncodedBytes(const CodecSpec& spec, int64_t count) {
  const int64_t per_byte = 8 / spec.bits;
  return CodesOffset(spec, count) + AlignUp((count + per_byte - 1) / per_byte);
}

}  // namespace ballast::kernels
