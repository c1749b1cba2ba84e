#include "kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace ballast::kernels {
namespace {

constexpr uint64_t kAllOnes = ~uint64_t{0};
constexpr uint64_t kMantissaMask = (uint64_t{1} << 52) - 1;

// `carry` is 0 or 1; returns the new carry.
uint64_t AddTo(uint64_t* limb, uint64_t value, uint64_t carry) {
  const uint64_t sum = *limb + value;
  const uint64_t total = sum + carry;
  carry =
      static_cast<uint64_t>(sum < value) | static_cast<uint64_t>(total < sum);
  *limb = total;
  return carry;
}

}  // namespace

void ExactSum::AddLimb(int index, uint64_t value) {
  uint64_t carry = AddTo(&limbs_[index], value, 0);
  for (int i = index + 1; carry != 0 && i < kLimbs; ++i) {
    carry = AddTo(&limbs_[i], 0, carry);
  }
  if (carry != 0) limbs_.fill(kAllOnes);
}

void ExactSum::Add(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  if ((bits << 1) == 0) return;                       // +0 and -0
  const int exponent = static_cast<int>(bits >> 52);  // with the sign
  if (exponent >= 0x7ff) {  // negative, infinite or NaN
    limbs_.fill(kAllOnes);
    return;
  }
  const uint64_t implicit = exponent == 0 ? 0 : uint64_t{1} << 52;
  const uint64_t mantissa = (bits & kMantissaMask) | implicit;
  const int shift = exponent == 0 ? 0 : exponent - 1;
  const int offset = shift % 64;
  // The high part first: a carry of the low part then finds it in place.
  if (offset > 0) AddLimb(shift / 64 + 1, mantissa >> (64 - offset));
  AddLimb(shift / 64, mantissa << offset);
}

void ExactSum::Merge(const ExactSum& other) {
  uint64_t carry = 0;
  for (int i = 0; i < kLimbs; ++i) {
    carry = AddTo(&limbs_[i], other.limbs_[i], carry);
  }
  if (carry != 0) limbs_.fill(kAllOnes);
}

double ExactSum::ToDouble() const {
  int top = kLimbs - 1;
  while (top >= 0 && limbs_[top] == 0) --top;
  if (top < 0) return 0;
  // Position of the highest set bit; up to 52 is a subnormal or exact.
  const int high = top * 64 + 63 - std::countl_zero(limbs_[top]);
  if (high <= 52) return std::bit_cast<double>(limbs_[0]);

  const int low = high - 52;  // position of the last kept bit
  const auto bit = [&](int position) {
    return (limbs_[position / 64] >> (position % 64)) & 1;
  };
  uint64_t mantissa = limbs_[low / 64] >> (low % 64);
  if (low % 64 > 11) mantissa |= limbs_[low / 64 + 1] << (64 - low % 64);
  mantissa &= (uint64_t{1} << 53) - 1;

  if (bit(low - 1) != 0) {
    const int half = low - 1;
    bool sticky = (limbs_[half / 64] & ((uint64_t{1} << (half % 64)) - 1)) != 0;
    sticky = sticky || std::any_of(limbs_.begin(), limbs_.begin() + half / 64,
                                   [](uint64_t limb) { return limb != 0; });
    if (sticky || (mantissa & 1) != 0) ++mantissa;
  }
  // A mantissa of 2^53 carries into the exponent by itself.
  const uint64_t exponent = static_cast<uint64_t>(high - 52);
  if (exponent >= 0x7ff) return std::numeric_limits<double>::infinity();
  const uint64_t bits = (exponent << 52) + mantissa;
  if (bits >= uint64_t{0x7ff} << 52) {
    return std::numeric_limits<double>::infinity();
  }
  return std::bit_cast<double>(bits);
}

bool ExactSum::FromLimbs(std::span<const uint64_t> limbs, ExactSum* sum) {
  if (limbs.size() != kLimbs) return false;
  std::copy(limbs.begin(), limbs.end(), sum->limbs_.begin());
  return true;
}

}  // namespace ballast::kernels
