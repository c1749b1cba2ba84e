// Which tensors and buckets of the open step are handed over: pure
// bookkeeping. A bucket is complete when every trainable tensor with elements
// in it is in.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_PUSH_TRACKER_H_
#define CLIENT_WORKER_PUSH_TRACKER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace ballast::worker {

// Buckets [first, last] of one tensor; first = -1: in none.
struct BucketRange {
  int32_t first = -1;
  int32_t last = -1;
};

class PushTracker {
 public:
  PushTracker() = default;

  // `ranges` come from the daemon: DataLoss if they are not inside
  // [0, num_buckets) or a bucket has no tensor.
  static absl::StatusOr<PushTracker> Create(std::vector<BucketRange> ranges,
                                            int num_buckets);

  // Everything is to be pushed again.
  void Reset();

  // The daemon has this bucket already (re-attach): it is never returned by
  // Push or PushRest. False if there is no such bucket.
  bool MarkPushed(int bucket);

  // Appends to `ready` the buckets that this tensor completes. A tensor that
  // is in already changes nothing.
  void Push(int tensor, std::vector<int32_t>& ready);

  // Appends every bucket that was not pushed, in ascending order.
  void PushRest(std::vector<int32_t>& ready);

  bool any_pushed() const { return any_pushed_; }
  int num_buckets() const { return static_cast<int>(tensors_in_.size()); }
  int num_tensors() const { return static_cast<int>(ranges_.size()); }
  const BucketRange& range(int tensor) const { return ranges_[tensor]; }

 private:
  std::vector<BucketRange> ranges_;
  std::vector<int32_t> tensors_in_;  // per bucket: how many have elements in it
  std::vector<int32_t> missing_;     // per bucket: tensors not yet in
  std::vector<uint8_t> is_tensor_in_;
  std::vector<uint8_t> is_pushed_;
  bool any_pushed_ = false;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_PUSH_TRACKER_H_
