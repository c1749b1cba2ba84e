// Whether a quantized exchange is worth it on this link (I24): how long the
// unquantized one of the same steps would have taken at the rate that the
// link was seen to have, as a part of what the quantized one took.
//
//   wire      time in which something was posted to the transport
//   exchange  time in which a bucket was between its gradients and its weights:
//             sums, encoding, wire, decoding
//   ratio     wire * (exact bytes / sent bytes) / exchange
//
// Below 1, `exact` is faster. Waiting for peers counts as wire and its own
// sums as nothing it saves, so the estimate errs in favour of what runs; with
// wire and arithmetic overlapped it is as good as the overlap.
//
// Threading: thread-compatible.
#ifndef SERVER_ENGINE_EXACT_ESTIMATE_H_
#define SERVER_ENGINE_EXACT_ESTIMATE_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace ballast::engine {

class ExactEstimate {
 public:
  static constexpr size_t kSteps = 16;  // of which it is the mean

  // `exact_bytes`: what this node would send in a step; 0: nothing is
  // quantized, and there is nothing to estimate.
  explicit ExactEstimate(uint64_t exact_bytes) : exact_bytes_(exact_bytes) {}

  // Of one step of this node that was not skipped.
  void Add(uint64_t sent_bytes, double wire_seconds, double exchange_seconds) {
    steps_[num_steps_++ % kSteps] = {static_cast<double>(sent_bytes),
                                     wire_seconds, exchange_seconds};
  }

  // 0 while it is not known.
  double ratio() const {
    if (exact_bytes_ == 0 || num_steps_ < kSteps) return 0;
    Sample sum;
    for (const Sample& step : steps_) {
      sum.sent_bytes += step.sent_bytes;
      sum.wire_seconds += step.wire_seconds;
      sum.exchange_seconds += step.exchange_seconds;
    }
    if (sum.sent_bytes <= 0 || sum.exchange_seconds <= 0) return 0;
    const double exact_seconds = sum.wire_seconds * kSteps *
                                 static_cast<double>(exact_bytes_) /
                                 sum.sent_bytes;
    return exact_seconds / sum.exchange_seconds;
  }

 private:
  struct Sample {
    double sent_bytes = 0;
    double wire_seconds = 0;
    double exchange_seconds = 0;
  };

  const uint64_t exact_bytes_;
  std::array<Sample, kSteps> steps_{};
  size_t num_steps_ = 0;
};

}  // namespace ballast::engine

#endif  // SERVER_ENGINE_EXACT_ESTIMATE_H_
