#include "server/collective/task_gate.h"

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"

namespace ballast::collective {
namespace {

class TaskGateTest : public testing::Test {
 protected:
  base::SimExecutor executor_{1};
  base::SimComputePool pool_{&executor_, 1, 2};
  std::unique_ptr<TaskGate> gate_ = std::make_unique<TaskGate>(&pool_);
  int num_done_ = 0;
};

TEST_F(TaskGateTest, ReportsLaterAndOnce) {
  EmptyTask task(gate_.get(), [this] { ++num_done_; });
  gate_->Submit(&task);
  EXPECT_EQ(num_done_, 0);
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(num_done_, 1);
}

TEST_F(TaskGateTest, AShutGateSwallowsCompletions) {
  EmptyTask task(gate_.get(), [this] { ++num_done_; });
  gate_->Submit(&task);
  gate_->Shut();
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(num_done_, 0);
}

TEST_F(TaskGateTest, IsIdleOnlyAfterTheLastTask) {
  class Slow final : public GatedTask {
   public:
    using GatedTask::GatedTask;
    void Run(int) override { has_run = true; }
    bool has_run = false;

   private:
    void OnDone() override { FAIL() << "the gate was shut"; }
  };
  auto tasks =
      std::make_unique<std::pair<Slow, Slow>>(gate_.get(), gate_.get());
  gate_->Submit(&tasks->first);
  gate_->Submit(&tasks->second);
  gate_->Shut();
  bool is_idle = false;
  gate_->WhenIdle([&] {
    is_idle = true;
    EXPECT_TRUE(tasks->first.has_run && tasks->second.has_run);
    tasks.reset();  // as an owner of both does
    gate_.reset();
  });
  EXPECT_FALSE(is_idle);
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_TRUE(is_idle);
}

TEST_F(TaskGateTest, IsIdleWithoutTasksToo) {
  gate_->Shut();
  int num_idle = 0;
  gate_->WhenIdle([&] { ++num_idle; });
  gate_->WhenIdle([&] { ++num_idle; });
  EXPECT_EQ(num_idle, 0);  // never from inside the call
  ASSERT_TRUE(executor_.RunUntilIdle());
  EXPECT_EQ(num_idle, 2);
}

}  // namespace
}  // namespace ballast::collective
