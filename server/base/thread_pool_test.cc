#include "server/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gtest/gtest.h"
#include "server/base/cpus.h"
#include "server/base/event_loop.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

class FunctionTask final : public Task {
 public:
  absl::AnyInvocable<void(int)> run = [](int) {};
  absl::AnyInvocable<void()> done = [] {};
  void Run(int thread) override { run(thread); }
  void Done() override { done(); }
};

class ThreadPoolTest : public ::testing::Test {
 protected:
  MonotonicClock clock_;
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create(&clock_).value();
};

// I2, I22: what Run writes is visible to Done, plain memory throughout.
TEST_F(ThreadPoolTest, RunsAndCompletesEveryTaskOnce) {
  constexpr int kTasks = 500;
  constexpr int kRounds = 4;
  ThreadPool pool({.num_threads = 3}, loop_.get());
  ASSERT_EQ(pool.num_threads(), 3);
  struct Slot {
    int runs = 0;
    int dones = 0;
  };
  std::vector<Slot> slots(kTasks);
  std::vector<FunctionTask> tasks(kTasks);
  int num_done = 0;
  for (int i = 0; i < kTasks; ++i) {
    tasks[i].run = [&, i](int thread) {
      ASSERT_LT(thread, 3);
      ++slots[i].runs;
    };
    tasks[i].done = [&, i] {
      EXPECT_EQ(slots[i].runs, ++slots[i].dones);
      if (slots[i].dones < kRounds) pool.Submit(&tasks[i]);
      if (++num_done == kTasks * kRounds) loop_->Stop();
    };
    pool.Submit(&tasks[i]);
  }
  loop_->Run();
  for (const Slot& slot : slots) EXPECT_EQ(slot.dones, kRounds);
}

TEST_F(ThreadPoolTest, StartsInTheOrderOfSubmissionAlsoBeyondItsBound) {
  ThreadPool pool({.num_threads = 1, .max_in_flight = 2}, loop_.get());
  constexpr int kTasks = 50;
  std::vector<int> order;
  std::vector<FunctionTask> tasks(kTasks);
  int num_done = 0;
  for (int i = 0; i < kTasks; ++i) {
    tasks[i].run = [&, i](int) { order.push_back(i); };
    tasks[i].done = [&] {
      if (++num_done == kTasks) loop_->Stop();
    };
    pool.Submit(&tasks[i]);
  }
  loop_->Run();
  for (int i = 0; i < kTasks; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(ThreadPoolTest, NamesItsThreads) {
  ThreadPool pool({.num_threads = 1, .name = "math"}, loop_.get());
  std::string name(16, '\0');
  FunctionTask task;
  task.run = [&](int) {
    // Set by the creator right after the start: bounded polling.
    for (int i = 0; i < 1'000'000 && name.rfind("math-0", 0) != 0; ++i) {
      pthread_getname_np(pthread_self(), name.data(), name.size());
    }
  };
  task.done = [&] { loop_->Stop(); };
  pool.Submit(&task);
  loop_->Run();
  EXPECT_STREQ(name.c_str(), "math-0");
}

// I28: the threads are joined, no Done comes after the pool is gone.
TEST_F(ThreadPoolTest, DestructionWaitsForWhatRunsAndDropsTheRest) {
  std::atomic<int> num_runs{0};
  int num_done = 0;
  std::vector<FunctionTask> tasks(64);
  {
    ThreadPool pool({.num_threads = 2}, loop_.get());
    for (FunctionTask& task : tasks) {
      task.run = [&](int) { num_runs.fetch_add(1); };
      task.done = [&] { ++num_done; };
      pool.Submit(&task);
    }
  }
  const int runs_at_end = num_runs.load();
  loop_->RunOnce(absl::ZeroDuration());
  EXPECT_EQ(num_runs.load(), runs_at_end);
  EXPECT_EQ(num_done, 0);
}

// Each thread stays where it is put.
TEST_F(ThreadPoolTest, ThreadsStayOnTheirProcessors) {
  const int cpu = UsableCpus().back();
  struct WhereTask final : Task {
    void Run(int) override {
      for (int i = 0; i < 100; ++i) {
        std::this_thread::yield();
        cpus.insert(sched_getcpu());
      }
      is_run = true;
    }
    void Done() override {}
    std::set<int> cpus;
    std::atomic<bool> is_run = false;
  } task;
  {
    ThreadPool pool({.num_threads = 2, .cpus = {cpu}}, loop_.get());
    pool.Submit(&task);
    while (!task.is_run) std::this_thread::yield();
  }
  EXPECT_EQ(task.cpus, std::set<int>{cpu});
}

}  // namespace
}  // namespace ballast::base
