#include "server/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/base/cpus.h"
#include "server/base/futex.h"
#include "server/base/mpmc_ring.h"

namespace ballast::base {
namespace {

constexpr size_t kMaxThreadNameBytes = 15;  // of pthread_setname_np

// A semaphore on a futex; sleepers cost a system call, nobody else does.
class Semaphore {
 public:
  void Release() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    // seq_cst pairs with Acquire: either the sleeper sees the count, or this
    // sees the sleeper.
    if (num_sleepers_.load(std::memory_order_seq_cst) > 0) {
      FutexWake(&count_, 1, FutexScope::kPrivate);
    }
  }

  void Acquire() {
    while (!TryAcquire()) {
      num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
      FutexWait(&count_, 0, absl::InfiniteDuration(), FutexScope::kPrivate);
      num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

 private:
  bool TryAcquire() {
    uint32_t count = count_.load(std::memory_order_seq_cst);
    while (count > 0) {
      if (count_.compare_exchange_weak(count, count - 1,
                                       std::memory_order_seq_cst)) {
        return true;
      }
    }
    return false;
  }

  std::atomic<uint32_t> count_{0};
  std::atomic<int> num_sleepers_{0};
};

void StayOn(std::thread* thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread->native_handle(), sizeof(set), &set);
}

}  // namespace

struct ThreadPool::Core : std::enable_shared_from_this<Core> {
  Core(Executor* executor, size_t max_in_flight)
      : executor(executor),
        max_in_flight(std::max<size_t>(max_in_flight, 1)),
        ready(this->max_in_flight),
        done(this->max_in_flight) {}

  Executor* const executor;
  const size_t max_in_flight;

  // Neither ring is ever full: num_in_flight bounds both.
  MpmcRing<Task> ready;
  MpmcRing<Task> done;
  Semaphore num_ready;
  std::atomic<bool> is_stopping{false};
  std::atomic<bool> is_delivery_posted{false};

  // Control thread only.
  size_t num_in_flight = 0;
  std::deque<Task*> backlog;
  bool is_closed = false;

  void Start(Task* task) {
    ++num_in_flight;
    ready.TryPush(task);
    num_ready.Release();
  }
};

ThreadPool::ThreadPool(const Options& options, Executor* executor)
    : core_(std::make_shared<Core>(executor, options.max_in_flight)) {
  const int num_threads = options.num_threads > 0
                              ? options.num_threads
                              : static_cast<int>(UsableCpus().size());
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back(RunThread, core_.get(), i, options.niceness);
    const std::string name =
        absl::StrCat(options.name, "-", i).substr(0, kMaxThreadNameBytes);
    pthread_setname_np(threads_.back().native_handle(), name.c_str());
    if (!options.cpus.empty()) {
      StayOn(&threads_.back(), options.cpus[i % options.cpus.size()]);
    }
  }
}

ThreadPool::~ThreadPool() {
  core_->is_closed = true;
  core_->is_stopping.store(true, std::memory_order_release);
  for (size_t i = 0; i < threads_.size(); ++i) core_->num_ready.Release();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Submit(Task* task) {
  if (core_->num_in_flight >= core_->max_in_flight || !core_->backlog.empty()) {
    core_->backlog.push_back(task);
    return;
  }
  core_->Start(task);
}

void ThreadPool::RunThread(Core* core, int thread, int niceness) {
  // Linux: of the calling thread alone. To be nicer is always allowed.
  if (niceness > 0) std::ignore = nice(niceness);
  while (true) {
    core->num_ready.Acquire();
    if (core->is_stopping.load(std::memory_order_acquire)) return;
    // One entry is there for each count; it may still be in another producer's
    // or consumer's hands for a moment.
    Task* task;
    while ((task = core->ready.TryPop()) == nullptr) std::this_thread::yield();
    task->Run(thread);
    core->done.TryPush(task);
    // acq_rel: pairs with Deliver, which clears the flag before it looks. If
    // it was set, that Deliver is still to come and will see this task.
    if (!core->is_delivery_posted.exchange(true, std::memory_order_acq_rel)) {
      core->executor->Post(
          [core = core->shared_from_this()] { Deliver(core); });
    }
  }
}

void ThreadPool::Deliver(const std::shared_ptr<Core>& core) {
  if (core->is_closed) return;
  core->is_delivery_posted.exchange(false, std::memory_order_acq_rel);
  while (Task* task = core->done.TryPop()) {
    --core->num_in_flight;
    if (!core->backlog.empty()) {
      core->Start(core->backlog.front());
      core->backlog.pop_front();
    }
    task->Done();
    if (core->is_closed) return;  // Done() destroyed the pool
  }
}

}  // namespace ballast::base
