// How far what was sent is from what was meant: sums over sampled cells
// (layout/metering.h). A cell's sums are in fp64, element by element; those of
// cells are added exactly, so that no cut and no order changes a bit.
//
// Threading: plain values and pure functions, no allocation.
#ifndef SERVER_COLLECTIVE_ERROR_SUMS_H_
#define SERVER_COLLECTIVE_ERROR_SUMS_H_

#include <cstdint>
#include <vector>

#include "kernels/exact_sum.h"
#include "server/collective/codec.h"

namespace ballast::collective {

struct ErrorSums {
  kernels::ExactSum error2;           // (decoded - value)^2
  kernels::ExactSum value2;           // of what an error is relative to
  kernels::ExactSum narrower_error2;  // as another codec would have it
  uint64_t sampled = 0;               // elements
  uint64_t clipped = 0;               // of them, cut off at the largest code

  void Merge(const ErrorSums& other) {
    error2.Merge(other.error2);
    value2.Merge(other.value2);
    narrower_error2.Merge(other.narrower_error2);
    sampled += other.sampled;
    clipped += other.clipped;
  }
  // In the L2 sense; 0 if there is no value.
  double Relative() const;

  bool operator==(const ErrorSums&) const = default;
};

// One path of one step on this node: of the metered tensors from `first` on
// (layout::MeterWindow).
struct PathErrors {
  int first = 0;
  std::vector<ErrorSums> tensors;
};

// What is tried beside the codec in force, of what it would encode (not always
// the same: a delta instead of a value).
struct Alternative {
  const Codec* codec = nullptr;  // null: nothing
  const float* values = nullptr;
};

// Whether a cell of any size has room where errors are measured. Codecs must
// (codec_conformance_test): one that does not would be refused there, not
// measured as if it had no error.
bool FitsMeter(const Codec& codec);

// Adds one cell of the encoding of `values`, beside the magnitude of `whole`
// (of deltas: what they are the last part of). A cell that is not finite
// counts as nothing: the step will be skipped. Both codecs fit.
void SampleCell(const Codec& codec, const Alternative& narrower,
                const Run& cell, const float* values, const float* whole,
                ErrorSums* sums);

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_ERROR_SUMS_H_
