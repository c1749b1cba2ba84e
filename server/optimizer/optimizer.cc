#include "server/optimizer/optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/step_undo.h"
#include "proto/control_block.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"

namespace ballast::optimizer {
namespace {

class ShardOptimizer;

// One chunk of this node, updated under an undo record.
class ChunkTask final : public base::Task {
 public:
  // `chunk` null: nothing to do, but to report.
  ChunkTask(ShardOptimizer* optimizer, BucketId bucket, int64_t index,
            const layout::Chunk* chunk)
      : optimizer_(optimizer), bucket_(bucket), index_(index), chunk_(chunk) {}

  void Run(int thread) override;
  void Done() override;

 private:
  ShardOptimizer* const optimizer_;
  const BucketId bucket_;
  const int64_t index_;  // over the node's chunks
  const layout::Chunk* const chunk_;
};

struct BucketUpdate {
  std::vector<ChunkTask> tasks;  // at least one
  size_t num_left = 0;
};

class ShardOptimizer final : public Optimizer {
 public:
  ShardOptimizer(const Parts& parts, std::unique_ptr<UndoLog> undo)
      : parts_(parts), undo_(std::move(undo)) {
    int64_t index = 0;
    updates_.resize(parts_.layout->buckets().size());
    for (const layout::Bucket& bucket : parts_.layout->buckets()) {
      std::vector<ChunkTask>& tasks = updates_[bucket.id.value()].tasks;
      const auto& chunks = parts_.layout->shard(bucket.id, parts_.node).chunks;
      tasks.reserve(std::max<size_t>(1, chunks.size()));
      for (const layout::Chunk& chunk : chunks) {
        tasks.emplace_back(this, bucket.id, index++, &chunk);
      }
      if (tasks.empty()) tasks.emplace_back(this, bucket.id, 0, nullptr);
    }
    for (const layout::TensorSpec& tensor : parts_.layout->tensors()) {
      if (tensor.trainable) {
        num_groups_ = std::max(num_groups_, tensor.group + 1);
      }
    }
  }

  absl::Status BeginStep(
      Generation generation, Step step,
      std::span<const kernels::StepScalars> scalars) override {
    if (scalars.size() < static_cast<size_t>(num_groups_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a commit with the scalars of ", scalars.size(),
                       " param groups; tensors use ", num_groups_));
    }
    for (size_t i = 0; i < scalars.size(); ++i) {
      if (parts_.state->num_moments() == 0 &&
          (scalars[i].flags & kernels::kFlagMomentum) != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("a commit with momentum in param group ", i,
                         "; the job keeps no momentum buffers"));
      }
    }
    word_ = proto::SequenceWord(generation.value(), step.value());
    scalars_.assign(scalars.begin(), scalars.end());
    return absl::OkStatus();
  }

  void StartUpdate(BucketId bucket) override {
    BucketUpdate& update = updates_[bucket.value()];
    update.num_left = update.tasks.size();
    for (ChunkTask& task : update.tasks) parts_.pool->Submit(&task);
  }

  void KeepAll() override {
    if (parts_.guard == nullptr) return;
    int64_t num_chunks = 0;
    for (const layout::Bucket& bucket : parts_.layout->buckets()) {
      num_chunks +=
          std::ssize(parts_.layout->shard(bucket.id, parts_.node).chunks);
    }
    for (int64_t i = 0; i < num_chunks; ++i) parts_.guard->BeforeUpdate(i);
  }

  void InitializeFromWeights(Moments moments) override {
    ShardState& state = *parts_.state;
    for (int i = 0; moments == Moments::kZero && i < state.num_moments(); ++i) {
      std::ranges::fill(state.moment(i), 0.0f);
    }
    std::ranges::fill(state.gradient(), 0.0f);
    std::ranges::fill(state.master(), 0.0f);
    for (const layout::Bucket& bucket : parts_.layout->buckets()) {
      for (const auto& piece :
           parts_.layout->shard(bucket.id, parts_.node).pieces) {
        parts_.kernels->widen(WeightsOf(bucket.id, piece), DTypeOf(piece),
                              piece.size(),
                              state.master().data() + piece.state_offset);
      }
    }
    undo_->Clear();
  }

  // On a pool thread.
  void Update(int thread, BucketId bucket, int64_t index,
              const layout::Chunk& chunk) {
    if (undo_->IsDone(index, word_)) return;
    if (parts_.guard != nullptr) parts_.guard->BeforeUpdate(index);
    if (!BALLAST_SABOTAGED("optimizer.no_undo")) {
      undo_->Begin(thread, index, word_);
    }
    BALLAST_FAILPOINT("optimizer.chunk.open");
    for (const layout::Piece& piece : chunk.pieces) {
      UpdatePiece(bucket, piece,
                  undo_->ForPiece(thread, index, piece.state_offset));
    }
    BALLAST_FAILPOINT("optimizer.chunk.updated");
    undo_->Finish(thread, index, word_);
  }

  void OnChunkDone(BucketId bucket) {
    if (--updates_[bucket.value()].num_left > 0) return;
    parts_.observer->OnUpdated(bucket);
  }

 private:
  kernels::DType DTypeOf(const layout::Piece& piece) const {
    return parts_.layout->tensor(piece.tensor).dtype;
  }

  std::byte* WeightsOf(BucketId bucket, const layout::Piece& piece) const {
    const int64_t shift =
        parts_.weight_shifts.empty() ? 0 : parts_.weight_shifts[bucket.value()];
    const int64_t offset = parts_.layout->place(piece.tensor).weight_offset +
                           piece.begin * kernels::SizeOf(DTypeOf(piece));
    return parts_.weights.data() + (offset + shift);
  }

  void UpdatePiece(BucketId bucket, const layout::Piece& piece,
                   kernels::StepUndo undo) {
    ShardState& state = *parts_.state;
    const auto at = [&piece](std::span<float> array) {
      return array.data() + piece.state_offset;
    };
    const kernels::StepScalars& scalars =
        scalars_[parts_.layout->tensor(piece.tensor).group];
    // A group without momentum in a job with buffers leaves its own alone;
    // its record is whole all the same.
    const bool has_m = state.kind() != kernels::OptimizerKind::kSgd ||
                       (scalars.flags & kernels::kFlagMomentum) != 0;
    if (!has_m && undo.m != nullptr) {
      std::copy_n(at(state.moment(0)), piece.size(), undo.m);
      undo.m = nullptr;
    }
    parts_.kernels->optimizer_step_undo(
        state.kind(), scalars, piece.size(), at(state.gradient()),
        at(state.master()), has_m ? at(state.moment(0)) : nullptr,
        state.num_moments() > 1 ? at(state.moment(1)) : nullptr, DTypeOf(piece),
        parts_.casts_weights ? WeightsOf(bucket, piece) : nullptr, undo);
  }

  const Parts parts_;
  const std::unique_ptr<UndoLog> undo_;
  int num_groups_ = 0;                 // that trainable tensors use
  std::vector<BucketUpdate> updates_;  // per bucket; never moved
  // The committed step; read by tasks, written only between steps.
  uint64_t word_ = 0;
  std::vector<kernels::StepScalars> scalars_;
};

void ChunkTask::Run(int thread) {
  if (chunk_ != nullptr) optimizer_->Update(thread, bucket_, index_, *chunk_);
}

void ChunkTask::Done() { optimizer_->OnChunkDone(bucket_); }

absl::Status CheckParts(const Parts& parts, const UndoLog& undo) {
  const int64_t elements = parts.layout->state_elements(parts.node);
  const bool has_all = parts.weight_shifts.empty();
  if ((has_all && parts.weights.size() < parts.layout->weights_bytes()) ||
      (!has_all &&
       parts.weight_shifts.size() != parts.layout->buckets().size()) ||
      static_cast<int64_t>(parts.state->master().size()) != elements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of ", parts.weights.size(), " bytes and state of ",
        parts.state->master().size(), " elements; the layout has ",
        parts.layout->weights_bytes(), " and ", elements));
  }
  if (undo.num_threads() < parts.pool->num_threads() ||
      undo.num_moments() != parts.state->num_moments()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "an undo log for ", undo.num_threads(), " threads and ",
        undo.num_moments(), " moments; ", parts.pool->num_threads(), " and ",
        parts.state->num_moments(), " are needed"));
  }
  if (undo.has_open_chunks()) {
    return absl::FailedPreconditionError(
        "the undo log has open chunks; restore them first");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const Parts& parts, std::unique_ptr<UndoLog> undo) {
  if (undo == nullptr) {
    ASSIGN_OR_RETURN(
        undo,
        UndoLog::Create(parts.device, *parts.layout, parts.node,
                        parts.state->num_moments(), parts.pool->num_threads()));
  }
  RETURN_IF_ERROR(CheckParts(parts, *undo));
  return std::make_unique<ShardOptimizer>(parts, std::move(undo));
}

}  // namespace ballast::optimizer
