// The exact sum of non-negative doubles: a fixed-point number that covers the
// whole range of a double, so that adding is associative and the sum of cell
// norms does not depend on who adds which cells in which order (DESIGN 5).
//
// Threading: thread-compatible. No allocation.
#ifndef KERNELS_EXACT_SUM_H_
#define KERNELS_EXACT_SUM_H_

#include <array>
#include <cstdint>
#include <span>

namespace ballast::kernels {

class ExactSum {
 public:
  // Bit 0 of limb 0 weighs 2^-1074; 78 bits lie above the largest double.
  static constexpr int kLimbs = 34;

  // `value` is finite and not negative. Anything else saturates the sum, as
  // does an overflow (2^78 times the largest double): never a silent wrap.
  void Add(double value);
  void Merge(const ExactSum& other);

  // Nearest-even; infinite if saturated or beyond the largest double.
  double ToDouble() const;

  // Least significant limb first. Equal sums have equal limbs.
  std::span<const uint64_t> limbs() const { return limbs_; }

  // False (and *sum unchanged) unless there are exactly kLimbs limbs; every
  // content is a valid sum, so limbs of a peer need no other check.
  static bool FromLimbs(std::span<const uint64_t> limbs, ExactSum* sum);

  bool operator==(const ExactSum&) const = default;

 private:
  void AddLimb(int index, uint64_t value);

  std::array<uint64_t, kLimbs> limbs_{};
};

}  // namespace ballast::kernels

#endif  // KERNELS_EXACT_SUM_H_
