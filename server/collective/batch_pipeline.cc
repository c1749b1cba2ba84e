#include "server/collective/batch_pipeline.h"

#include <deque>
#include <optional>
#include <utility>

#include "server/base/status_macros.h"
#include "server/collective/chunk_task.h"

namespace ballast::collective {

class BatchPipeline::Lane final : private transport::ExchangeObserver {
 public:
  explicit Lane(BatchPipeline* pipeline) : pipeline_(pipeline) {}

  // Tasks, and what they are followed by.
  absl::Status Add(std::vector<Work> tasks,
                   const transport::ExchangeSpec* spec) {
    Stage& stage = stages_.emplace_back();
    for (Work& work : tasks) stage.tasks.emplace_back(this, std::move(work));
    if (spec == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(
        stage.exchange,
        pipeline_->context_->parts.transport->Prepare(*spec, this));
    return absl::OkStatus();
  }
  void set_payload_bytes(uint64_t bytes) { payload_bytes_ = bytes; }

  absl::Status Start() {
    current_ = 0;
    return StartStage();
  }

  void Cancel() {
    for (Stage& stage : stages_) {
      if (stage.exchange != nullptr) stage.exchange->Cancel();
    }
  }

  void ForEachExchange(
      absl::FunctionRef<void(const transport::Exchange& exchange)> fn) const {
    for (const Stage& stage : stages_) {
      if (stage.exchange != nullptr) fn(*stage.exchange);
    }
  }

 private:
  struct StageTask {
    StageTask(Lane* lane, Work work)
        : chunk(work.chunk),
          told(std::move(work.told)),
          task(&lane->pipeline_->context_->gate, std::move(work.run),
               [lane, this](const absl::Status& status) {
                 lane->OnTaskDone(this, status);
               }) {}
    const std::optional<ChunkId> chunk;
    const absl::AnyInvocable<uint64_t() const> told;  // null: own
    int num_heals = 0;                                // in this step
    ChunkTask task;
  };
  struct Stage {
    std::deque<StageTask> tasks;
    std::unique_ptr<transport::Exchange> exchange;  // null: none
  };

  // The last stage has tasks or is not asked for.
  absl::Status StartStage() {
    Stage& stage = stages_[current_];
    num_left_ = stage.tasks.size();
    if (num_left_ == 0) return Exchange();
    for (StageTask& task : stage.tasks) {
      task.num_heals = 0;
      Submit(&task);
    }
    return absl::OkStatus();
  }

  // Null: nothing watches what the task works on.
  ChunkWatch* WatchOf(const StageTask& task) const {
    return task.chunk.has_value() ? pipeline_->context_->watch : nullptr;
  }

  void Submit(StageTask* task) {
    if (ChunkWatch* const watch = WatchOf(*task)) {
      watch->OnSubmitted(*task->chunk);
    }
    pipeline_->context_->gate.Submit(&task->task);
  }

  absl::Status Exchange() {
    RETURN_IF_ERROR(stages_[current_].exchange->Post(pipeline_->step_));
    pipeline_->context_->on_wire.Begin();
    return absl::OkStatus();
  }

  void OnTaskDone(StageTask* task, const absl::Status& status) {
    ChunkWatch* const watch = WatchOf(*task);
    if (status.ok()) {
      if (watch != nullptr) watch->OnSound(*task->chunk);
      return OnTaskEnded();
    }
    const bool may_heal = absl::IsDataLoss(status) || absl::IsNotFound(status);
    if (watch == nullptr || !may_heal || ++task->num_heals > kMaxHeals) {
      return Fail(status);
    }
    watch->OnDamaged(
        {.id = *task->chunk,
         .step = pipeline_->step_,
         .why = status,
         .told = task->told ? std::optional(task->told()) : std::nullopt},
        [this, task](absl::StatusOr<AfterHealing> after) {
          if (!after.ok()) return Fail(after.status());
          if (*after == AfterHealing::kGoOn) return OnTaskEnded();
          Submit(task);
        });
  }

  void OnTaskEnded() {
    if (--num_left_ > 0) return;
    if (stages_[current_].exchange == nullptr) return pipeline_->OnLaneDone();
    const absl::Status posted = Exchange();
    if (!posted.ok()) Fail(posted);
  }

  void OnExchangeDone(transport::Exchange*, Step,
                      const absl::Status& status) override {
    pipeline_->context_->on_wire.End();
    if (!status.ok()) return Fail(status);
    ++current_;
    const Stage& next = stages_[current_];
    const bool is_last = next.exchange == nullptr;
    if (is_last) pipeline_->payload_sent_ += payload_bytes_;
    if (is_last && next.tasks.empty()) return pipeline_->OnLaneDone();
    const absl::Status started = StartStage();
    if (!started.ok()) Fail(started);
  }

  void Fail(const absl::Status& status) {
    pipeline_->context_->observer->OnOperationFailed(status);
  }

  BatchPipeline* const pipeline_;
  std::deque<Stage> stages_;  // the last has no exchange
  size_t current_ = 0;
  uint64_t payload_bytes_ = 0;
  size_t num_left_ = 0;  // tasks of the current stage
};

BatchPipeline::BatchPipeline(Context* context,
                             absl::AnyInvocable<void()> on_done)
    : context_(context), on_done_(std::move(on_done)) {}

BatchPipeline::~BatchPipeline() = default;

absl::Status BatchPipeline::Add(BatchParts parts) {
  Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>(this));
  lane.set_payload_bytes(parts.payload_bytes);
  RETURN_IF_ERROR(lane.Add(std::move(parts.before), &parts.spec));
  for (Round& round : parts.more) {
    RETURN_IF_ERROR(lane.Add(std::move(round.before), &round.spec));
  }
  return lane.Add(std::move(parts.after), nullptr);
}

void BatchPipeline::AddLocal(std::vector<Work> tasks) {
  // A task that does nothing reports, so that Start does not.
  if (tasks.empty()) tasks.push_back({[](int) { return absl::OkStatus(); }});
  lanes_.push_back(std::make_unique<Lane>(this));
  lanes_.back()->Add(std::move(tasks), nullptr).IgnoreError();  // no exchange
}

absl::Status BatchPipeline::Start(Step step) {
  step_ = step;
  num_open_ = lanes_.size();
  context_->exchanging.Begin();
  for (const auto& lane : lanes_) RETURN_IF_ERROR(lane->Start());
  return absl::OkStatus();
}

void BatchPipeline::Cancel() {
  for (const auto& lane : lanes_) lane->Cancel();
}

void BatchPipeline::ForEachExchange(
    absl::FunctionRef<void(const transport::Exchange& exchange)> fn) const {
  for (const auto& lane : lanes_) lane->ForEachExchange(fn);
}

void BatchPipeline::OnLaneDone() {
  if (--num_open_ > 0) return;
  context_->exchanging.End();
  on_done_();
}

}  // namespace ballast::collective
