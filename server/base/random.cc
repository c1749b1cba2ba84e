#include "server/base/random.h"

#include <sys/random.h>

#include <cstdlib>

namespace ballast::base {

uint64_t Random::Below(uint64_t bound) {
  // Rejection keeps it uniform.
  const uint64_t limit = bound * (UINT64_MAX / bound);
  uint64_t value;
  do {
    value = Next();
  } while (value >= limit);
  return value % bound;
}

uint64_t SeededRandom::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint64_t SystemRandom::Next() {
  uint64_t value;
  // Cannot fail for 8 bytes once the system has booted (getrandom(2)).
  if (getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
  return value;
}

}  // namespace ballast::base
