#include "server/collective/task_gate.h"

#include <utility>

namespace ballast::collective {
namespace {

class IdleTask final : public GatedTask {
 public:
  using GatedTask::GatedTask;
  void Run(int) override {}

 private:
  void OnDone() override {}
};

}  // namespace

void GatedTask::Done() { gate_->Leave(this); }

TaskGate::TaskGate(base::ComputePool* pool)
    : pool_(pool), last_(std::make_unique<IdleTask>(this)) {}

void TaskGate::Submit(GatedTask* task) {
  ++num_in_pool_;
  pool_->Submit(task);
}

void TaskGate::Leave(GatedTask* task) {
  --num_in_pool_;
  if (!is_shut_) {
    task->OnDone();  // nothing of the gate may be there any more
    return;
  }
  if (num_in_pool_ > 0 || when_idle_.empty()) return;
  auto callbacks = std::move(when_idle_);
  for (auto& callback : callbacks) std::move(callback)();
}

void TaskGate::WhenIdle(absl::AnyInvocable<void() &&> fn) {
  when_idle_.push_back(std::move(fn));
  if (when_idle_.size() == 1) Submit(last_.get());
}

}  // namespace ballast::collective
