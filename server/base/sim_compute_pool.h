// A compute pool in virtual time: tasks start in the order of submission on
// the free one of several virtual threads, run and are done after random
// delays, so that completions come in any order that real threads allow.
//
// Threading: as its executor (a SimExecutor or a SimProcess).
#ifndef SERVER_BASE_SIM_COMPUTE_POOL_H_
#define SERVER_BASE_SIM_COMPUTE_POOL_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "server/base/compute_pool.h"
#include "server/base/executor.h"
#include "server/base/random.h"

namespace ballast::base {

class SimComputePool final : public ComputePool {
 public:
  // `executor` outlives the pool, and runs nothing after the pool is gone
  // unless the pool was idle.
  SimComputePool(Executor* executor, uint64_t seed, int num_threads,
                 absl::Duration max_delay = absl::Microseconds(200));

  int num_threads() const override { return static_cast<int>(is_busy_.size()); }
  void Submit(Task* task) override;

 private:
  absl::Duration Delay();
  void StartNext();

  Executor* const executor_;
  SeededRandom random_;
  const absl::Duration max_delay_;
  std::deque<Task*> waiting_;
  std::vector<bool> is_busy_;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_SIM_COMPUTE_POOL_H_
