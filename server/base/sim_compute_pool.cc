#include "server/base/sim_compute_pool.h"

#include <algorithm>

namespace ballast::base {

SimComputePool::SimComputePool(Executor* executor, uint64_t seed,
                               int num_threads, absl::Duration max_delay)
    : executor_(executor),
      random_(seed),
      max_delay_(max_delay),
      is_busy_(std::max(num_threads, 1), false) {}

void SimComputePool::Submit(Task* task) {
  waiting_.push_back(task);
  StartNext();
}

absl::Duration SimComputePool::Delay() {
  return absl::Nanoseconds(
      random_.Below(absl::ToInt64Nanoseconds(max_delay_) + 1));
}

void SimComputePool::StartNext() {
  const auto free = std::find(is_busy_.begin(), is_busy_.end(), false);
  if (waiting_.empty() || free == is_busy_.end()) return;
  *free = true;
  const int thread = static_cast<int>(free - is_busy_.begin());
  Task* const task = waiting_.front();
  waiting_.pop_front();
  executor_->PostAfter(Delay(), [this, task, thread] {
    task->Run(thread);
    is_busy_[thread] = false;
    // Done comes later: another task may run, and end, in between.
    executor_->PostAfter(Delay(), [task] { task->Done(); });
    StartNext();
  });
}

}  // namespace ballast::base
