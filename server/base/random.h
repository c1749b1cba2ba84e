// The seam to randomness: seeded in tests and simulation, from the system
// (getrandom) in a daemon. Never used for rounding: that is counter-based
// (kernels/FORMAT.md).
//
// Threading: thread-compatible.
#ifndef SERVER_BASE_RANDOM_H_
#define SERVER_BASE_RANDOM_H_

#include <cstdint>

namespace ballast::base {

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;

  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound);
};

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;  // SplitMix64

 private:
  uint64_t state_;
};

class SystemRandom final : public Random {
 public:
  uint64_t Next() override;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_RANDOM_H_
