#include "server/base/sim_compute_pool.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"

namespace ballast::base {
namespace {

class NamedTask final : public Task {
 public:
  NamedTask(char name, std::string* log) : name_(name), log_(log) {}
  void Run(int thread) override {
    EXPECT_GE(thread, 0);
    EXPECT_LT(thread, 2);
    has_run_ = true;
  }
  void Done() override {
    EXPECT_TRUE(has_run_);
    has_run_ = false;
    *log_ += name_;
  }

 private:
  const char name_;
  std::string* const log_;
  bool has_run_ = false;
};

std::string Completions(uint64_t seed) {
  SimExecutor world(seed);
  SimComputePool pool(&world, seed, 2);
  std::string log;
  std::vector<NamedTask> tasks;
  for (char c = 'a'; c < 'h'; ++c) tasks.emplace_back(c, &log);
  for (NamedTask& task : tasks) pool.Submit(&task);
  EXPECT_TRUE(log.empty()) << "nothing completes inside Submit";
  EXPECT_TRUE(world.RunUntilIdle());
  return log;
}

TEST(SimComputePoolTest, CompletesAllInAnOrderThatTheSeedDecides) {
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string log = Completions(seed);
    EXPECT_EQ(log.size(), 7u);
    EXPECT_EQ(log, Completions(seed));
    orders.insert(log);
  }
  EXPECT_GT(orders.size(), 5u);
}

}  // namespace
}  // namespace ballast::base
