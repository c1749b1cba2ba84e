#include "client/worker/push_tracker.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ballast::worker {

absl::StatusOr<PushTracker> PushTracker::Create(std::vector<BucketRange> ranges,
                                                int num_buckets) {
  PushTracker tracker;
  tracker.tensors_in_.assign(num_buckets, 0);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto [first, last] = ranges[i];
    if (first == -1 && last == -1) continue;
    if (first < 0 || last < first || last >= num_buckets) {
      return absl::DataLossError(absl::StrCat("tensor ", i,
                                              " lies in buckets [", first, ", ",
                                              last, "] of ", num_buckets));
    }
    for (int32_t b = first; b <= last; ++b) ++tracker.tensors_in_[b];
  }
  for (int b = 0; b < num_buckets; ++b) {
    if (tracker.tensors_in_[b] == 0) {
      return absl::DataLossError(absl::StrCat("bucket ", b, " has no tensor"));
    }
  }
  tracker.ranges_ = std::move(ranges);
  tracker.Reset();
  return tracker;
}

void PushTracker::Reset() {
  missing_ = tensors_in_;
  is_tensor_in_.assign(ranges_.size(), 0);
  is_pushed_.assign(tensors_in_.size(), 0);
  any_pushed_ = false;
}

bool PushTracker::MarkPushed(int bucket) {
  if (bucket < 0 || bucket >= num_buckets()) return false;
  is_pushed_[bucket] = 1;
  return true;
}

void PushTracker::Push(int tensor, std::vector<int32_t>& ready) {
  if (is_tensor_in_[tensor]) return;
  is_tensor_in_[tensor] = 1;
  const auto [first, last] = ranges_[tensor];
  if (first < 0) return;
  any_pushed_ = true;
  for (int32_t b = first; b <= last; ++b) {
    if (--missing_[b] > 0 || is_pushed_[b]) continue;
    is_pushed_[b] = 1;
    ready.push_back(b);
  }
}

void PushTracker::PushRest(std::vector<int32_t>& ready) {
  std::fill(is_tensor_in_.begin(), is_tensor_in_.end(), 1);
  std::fill(missing_.begin(), missing_.end(), 0);
  any_pushed_ = true;
  for (int32_t b = 0; b < num_buckets(); ++b) {
    if (is_pushed_[b]) continue;
    is_pushed_[b] = 1;
    ready.push_back(b);
  }
}

}  // namespace ballast::worker
