// What the tests of kernels/host share: inputs that arithmetic tends to get
// wrong, memory that shows a write outside, and the tables under test.
#ifndef KERNELS_HOST_FUZZ_H_
#define KERNELS_HOST_FUZZ_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ballast::kernels::fuzz {

struct Tested {
  std::string name;
  Kernels table;
};

// One table for every instruction set of this machine that has vectors (the
// table without is the reference: host_test).
std::vector<Tested> HostTables();

class Random {  // SplitMix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int Below(int bound) { return static_cast<int>(Next() % bound); }

 private:
  uint64_t state_;
};

// `count` floats of one random kind: gradients, any bits (NaN, infinities,
// subnormals), zeros, 1e30 and other huge values, subnormals, codes plus a
// half, or a mixture by runs.
std::vector<float> Floats(int64_t count, Random* random);
std::vector<uint16_t> Halves(int64_t count, Random* random);

// Calls `check(random, count)` with counts that are 0 … 70, 2047 … 2049 or
// larger, until `elements` are used up or a check returns what is wrong.
// Returns that, empty if nothing is.
std::string ForEachCount(
    int64_t elements,
    const std::function<std::string(Random* random, int64_t count)>& check);

// An array that starts `offset` elements behind an aligned address and ends
// with its storage, so that a sanitizer sees a read beyond. Outputs have a
// guard behind them instead.
template <typename T>
class Array {
 public:
  Array(const std::vector<T>& values, int offset, bool is_output = false)
      : offset_(offset),
        count_(values.size()),
        storage_(offset + values.size() + (is_output ? kGuard : 0), T(77)) {
    for (size_t i = 0; i < count_; ++i) data()[i] = values[i];
  }
  T* data() { return storage_.data() + offset_; }
  const T* data() const { return storage_.data() + offset_; }
  int64_t size() const { return static_cast<int64_t>(count_); }
  // Nothing outside of the array was written.
  bool IsGuarded() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if (i == static_cast<size_t>(offset_)) i += count_;
      if (i < storage_.size() && storage_[i] != T(77)) return false;
    }
    return true;
  }

 private:
  static constexpr int kGuard = 64;
  int offset_;
  size_t count_;
  std::vector<T> storage_;
};

// Equal bits; any NaN equals any other (their bits are not specified).
bool Same(float a, float b);
inline bool Same(uint16_t a, uint16_t b) { return a == b; }
inline bool Same(uint8_t a, uint8_t b) { return a == b; }

// Empty if equal and guarded, otherwise where not.
template <typename T>
std::string Difference(const Array<T>& actual, const Array<T>& expected) {
  if (!actual.IsGuarded()) return "wrote outside of its output";
  for (int64_t i = 0; i < expected.size(); ++i) {
    if (!Same(actual.data()[i], expected.data()[i])) {
      return "element " + std::to_string(i) + " of " +
             std::to_string(expected.size());
    }
  }
  return "";
}

}  // namespace ballast::kernels::fuzz

#endif  // KERNELS_HOST_FUZZ_H_
