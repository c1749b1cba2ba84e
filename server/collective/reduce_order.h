// Which bucket may enter hop 2 next: layout order on all nodes, whatever the
// order of the requests, and no further than the window that it needs is free.
// All nodes enter in one order, so the lowest bucket in flight can always go
// on, and a stalled peer costs at most `num_windows` buckets of memory.
//
//   requested   x x . x x      window of bucket b: b mod num_windows
//   entered     1 2|           bucket 2 is not requested: 3 and 4 wait
//
// Threading: thread-compatible. No allocation after construction.
#ifndef SERVER_COLLECTIVE_REDUCE_ORDER_H_
#define SERVER_COLLECTIVE_REDUCE_ORDER_H_

#include <optional>
#include <vector>

#include "server/base/ids.h"

namespace ballast::collective {

struct ReduceRequest {
  BucketId bucket;
  Step step;
  bool operator==(const ReduceRequest&) const = default;
};

class ReduceOrder {
 public:
  ReduceOrder(int num_buckets, int num_windows)
      : requests_(num_buckets), is_busy_(num_windows) {}

  void Request(BucketId bucket, Step step) { requests_[bucket.value()] = step; }

  // Takes the next bucket that may enter, and its window; none: call again
  // after Request or Leave.
  std::optional<ReduceRequest> Enter() {
    if (requests_.empty() || !requests_[next_].has_value()) return {};
    const size_t window = next_ % is_busy_.size();
    if (is_busy_[window]) return {};
    is_busy_[window] = true;
    const ReduceRequest request{BucketId(static_cast<int32_t>(next_)),
                                *requests_[next_]};
    requests_[next_].reset();
    next_ = (next_ + 1) % requests_.size();  // then the next step begins
    return request;
  }

  void Leave(BucketId bucket) {
    is_busy_[bucket.value() % is_busy_.size()] = false;
  }

 private:
  std::vector<std::optional<Step>> requests_;
  std::vector<bool> is_busy_;
  size_t next_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_REDUCE_ORDER_H_
