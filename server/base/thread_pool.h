// The compute pool of a real process: threads that take tasks from a
// lock-free ring and hand them back to the control thread in batches, one
// Post a batch. Nothing is allocated and no mutex is taken per task.
//
// Threading: Submit, the constructor and the destructor on the control thread.
// Lifetime: `executor` outlives the pool. The destructor waits for the tasks
// that run, drops the others, and calls no more Done().
//
//   control thread             ring              pool threads
//   Submit ── backlog? ──▶ [ t3 t2 t1 ] ──▶ Run(0) … Run(n-1)
//   Done   ◀── one Post a batch ── [ t1 t2 ] ◀──┘
#ifndef SERVER_BASE_THREAD_POOL_H_
#define SERVER_BASE_THREAD_POOL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/compute_pool.h"
#include "server/base/executor.h"

namespace ballast::base {

class ThreadPool final : public ComputePool {
 public:
  struct Options {
    int num_threads = 0;  // 0: one per core this process may use
    // Thread i stays on cpus[i mod size]; empty: wherever the scheduler puts
    // it. Those that this process may not use are left to the scheduler too.
    std::vector<int> cpus = {};
    std::string name = "compute";  // threads are NAME-0, NAME-1, …
    // Of the threads, added to the process's: work that nobody waits for.
    int niceness = 0;
    // Tasks that are submitted and not Done; more wait in a backlog that the
    // control thread keeps.
    size_t max_in_flight = 4096;
  };

  ThreadPool(const Options& options, Executor* executor);
  ~ThreadPool() override;

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const override { return static_cast<int>(threads_.size()); }
  void Submit(Task* task) override;

 private:
  // Shared with the functions posted to the executor, which may run after the
  // pool is gone: hence a shared_ptr.
  struct Core;

  static void RunThread(Core* core, int thread, int niceness);
  static void Deliver(const std::shared_ptr<Core>& core);

  std::shared_ptr<Core> core_;
  std::vector<std::thread> threads_;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_THREAD_POOL_H_
