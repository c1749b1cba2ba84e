// How far what was sent is from what was meant, from a sample: the first cell
// of each run (about one in 32).
//
// Threading: plain values and pure functions, no allocation.
#ifndef SERVER_COLLECTIVE_ERROR_SUMS_H_
#define SERVER_COLLECTIVE_ERROR_SUMS_H_

#include "server/collective/codec.h"

namespace ballast::collective {

struct ErrorSums {
  double error2 = 0;
  double value2 = 0;

  void Add(const ErrorSums& other) {
    error2 += other.error2;
    value2 += other.value2;
  }
  // In the L2 sense; 0 if there is no value.
  double Relative() const;

  bool operator==(const ErrorSums&) const = default;
};

// Of the encoding of `values`, beside the magnitude of `whole` (of deltas: what
// they are the last part of). A sample that is not finite counts as nothing:
// the step will be skipped.
ErrorSums Sample(const Codec& codec, const Run& run, const float* values,
                 const float* whole);
inline ErrorSums Sample(const Codec& codec, const Run& run,
                        const float* values) {
  return Sample(codec, run, values, values);
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_ERROR_SUMS_H_
