#include "server/collective/batch_pipeline.h"

#include <deque>
#include <utility>

#include "server/base/status_macros.h"
#include "server/collective/chunk_task.h"

namespace ballast::collective {

class BatchPipeline::Lane final : private transport::ExchangeObserver {
 public:
  explicit Lane(BatchPipeline* pipeline) : pipeline_(pipeline) {}

  void AddTasks(std::vector<Run> before, std::vector<Run> after) {
    TaskGate* const gate = &pipeline_->context_->gate;
    for (Run& run : before) {
      before_.emplace_back(
          gate, std::move(run),
          [this](const absl::Status& status) { OnBeforeDone(status); });
    }
    for (Run& run : after) {
      after_.emplace_back(
          gate, std::move(run),
          [this](const absl::Status& status) { OnAfterDone(status); });
    }
  }

  absl::Status Prepare(const transport::ExchangeSpec& spec,
                       uint64_t payload_bytes) {
    payload_bytes_ = payload_bytes;
    ASSIGN_OR_RETURN(exchange_,
                     pipeline_->context_->parts.transport->Prepare(spec, this));
    return absl::OkStatus();
  }

  absl::Status Start() {
    num_left_ = before_.size();
    if (num_left_ == 0) return Exchange();
    for (ChunkTask& task : before_) pipeline_->context_->gate.Submit(&task);
    return absl::OkStatus();
  }

  void Cancel() {
    if (exchange_ != nullptr) exchange_->Cancel();
  }

  const transport::Exchange* exchange() const { return exchange_.get(); }

 private:
  absl::Status Exchange() {
    if (exchange_ != nullptr) return exchange_->Post(pipeline_->step_);
    SubmitAfter();
    return absl::OkStatus();
  }

  void SubmitAfter() {
    num_left_ = after_.size();
    for (ChunkTask& task : after_) pipeline_->context_->gate.Submit(&task);
  }

  void OnBeforeDone(const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    if (--num_left_ > 0) return;
    const absl::Status posted = Exchange();
    if (!posted.ok()) Fail(posted);
  }

  void OnExchangeDone(transport::Exchange*, Step,
                      const absl::Status& status) override {
    if (!status.ok()) return Fail(status);
    pipeline_->payload_sent_ += payload_bytes_;
    if (after_.empty()) return pipeline_->OnLaneDone();
    SubmitAfter();
  }

  void OnAfterDone(const absl::Status& status) {
    if (!status.ok()) return Fail(status);
    if (--num_left_ == 0) pipeline_->OnLaneDone();
  }

  void Fail(const absl::Status& status) {
    pipeline_->context_->observer->OnOperationFailed(status);
  }

  BatchPipeline* const pipeline_;
  std::deque<ChunkTask> before_;
  std::unique_ptr<transport::Exchange> exchange_;  // null with one node
  uint64_t payload_bytes_ = 0;
  std::deque<ChunkTask> after_;
  size_t num_left_ = 0;  // tasks, of one of the two
};

BatchPipeline::BatchPipeline(Context* context,
                             absl::AnyInvocable<void()> on_done)
    : context_(context), on_done_(std::move(on_done)) {}

BatchPipeline::~BatchPipeline() = default;

absl::Status BatchPipeline::Add(BatchParts parts) {
  Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>(this));
  lane.AddTasks(std::move(parts.before), std::move(parts.after));
  return lane.Prepare(parts.spec, parts.payload_bytes);
}

void BatchPipeline::AddLocal(std::vector<Run> tasks) {
  // A task that does nothing reports, so that Start does not.
  if (tasks.empty()) tasks.emplace_back([](int) { return absl::OkStatus(); });
  lanes_.push_back(std::make_unique<Lane>(this));
  lanes_.back()->AddTasks({}, std::move(tasks));
}

absl::Status BatchPipeline::Start(Step step) {
  step_ = step;
  num_open_ = lanes_.size();
  for (const auto& lane : lanes_) RETURN_IF_ERROR(lane->Start());
  return absl::OkStatus();
}

void BatchPipeline::Cancel() {
  for (const auto& lane : lanes_) lane->Cancel();
}

void BatchPipeline::ForEachExchange(
    absl::FunctionRef<void(const transport::Exchange& exchange)> fn) const {
  for (const auto& lane : lanes_) {
    if (lane->exchange() != nullptr) fn(*lane->exchange());
  }
}

void BatchPipeline::OnLaneDone() {
  if (--num_open_ == 0) on_done_();
}

}  // namespace ballast::collective
