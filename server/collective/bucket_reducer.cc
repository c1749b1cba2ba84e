#include "server/collective/bucket_reducer.h"

#include <algorithm>
#include <utility>

#include "server/base/status_macros.h"

namespace ballast::collective {

// Hop 1 of one chunk of one owner.
class BucketReducer::SumTask final : public GatedTask {
 public:
  SumTask(BucketReducer* reducer, const layout::Shard* shard,
          const layout::Chunk* chunk)
      : GatedTask(&reducer->context_->gate),
        reducer_(reducer),
        shard_(shard),
        chunk_(chunk) {}

  void Run(int thread) override {
    for (const layout::Piece& piece : chunk_->pieces) {
      reducer_->SumPiece(thread, *shard_, piece);
    }
  }

 private:
  void OnDone() override { reducer_->OnSumDone(); }

  BucketReducer* const reducer_;
  const layout::Shard* const shard_;
  const layout::Chunk* const chunk_;
};

// The reduced gradient of one own chunk, and its norm.
class BucketReducer::FinishTask final : public GatedTask {
 public:
  // `chunk` null: the node owns nothing of the bucket.
  FinishTask(BucketReducer* reducer, const layout::Chunk* chunk)
      : GatedTask(&reducer->context_->gate), reducer_(reducer), chunk_(chunk) {}

  void Run(int thread) override {
    partial_ = {};
    if (chunk_ == nullptr) return;
    for (const layout::Piece& piece : chunk_->pieces) {
      reducer_->FinishPiece(thread, piece, &partial_);
    }
  }

 private:
  void OnDone() override { reducer_->OnFinishDone(partial_); }

  BucketReducer* const reducer_;
  const layout::Chunk* const chunk_;
  Reduced partial_;
};

absl::StatusOr<std::unique_ptr<BucketReducer>> BucketReducer::Create(
    Context* context, BucketId bucket, std::span<float> window) {
  auto reducer = std::unique_ptr<BucketReducer>(
      new BucketReducer(context, bucket, window));
  if (context->parts.layout->topology().num_nodes > 1) {
    RETURN_IF_ERROR(reducer->PrepareExchange());
  }
  reducer->MakeTasks();
  return reducer;
}

BucketReducer::BucketReducer(Context* context, BucketId bucket,
                             std::span<float> window)
    : context_(context),
      bucket_(context->bucket(bucket)),
      own_(context->own_shard(bucket)),
      window_(window),
      plan_(PlanWindow(bucket_, context->tree, context->parts.node)) {}

BucketReducer::~BucketReducer() = default;

absl::Status BucketReducer::PrepareExchange() {
  const NodeRank self = context_->parts.node;
  const auto bytes = [this](int64_t begin, int64_t elements) {
    return std::as_writable_bytes(window_.subspan(begin, elements));
  };
  transport::ExchangeSpec spec = context_->Spec(kReducePhase, bucket_.id);
  const int64_t own_sums = context_->tree.num_ranges(self);
  for (const layout::Shard& shard : bucket_.shards) {
    const NodeRank peer = shard.owner;
    if (peer == self) continue;
    if (shard.num_elements > 0) {
      spec.sends.push_back({peer, bytes(plan_.sums[peer.value()],
                                        own_sums * SliceElements(shard))});
      payload_per_exchange_ += own_sums * shard.num_elements * sizeof(float);
    }
    if (own_.num_elements > 0) {
      spec.receives.push_back(
          {peer, bytes(plan_.received[peer.value()],
                       context_->tree.num_ranges(peer) * SliceElements(own_))});
    }
  }
  ASSIGN_OR_RETURN(exchange_, context_->parts.transport->Prepare(spec, this));
  return absl::OkStatus();
}

void BucketReducer::MakeTasks() {
  if (exchange_ != nullptr) {
    size_t num_chunks = 0;
    for (const layout::Shard& shard : bucket_.shards) {
      num_chunks += shard.chunks.size();
    }
    sum_tasks_.reserve(num_chunks);
    for (const layout::Shard& shard : bucket_.shards) {
      for (const layout::Chunk& chunk : shard.chunks) {
        sum_tasks_.emplace_back(this, &shard, &chunk);
      }
    }
  }
  finish_tasks_.reserve(std::max<size_t>(1, own_.chunks.size()));
  for (const layout::Chunk& chunk : own_.chunks) {
    finish_tasks_.emplace_back(this, &chunk);
  }
  if (finish_tasks_.empty()) finish_tasks_.emplace_back(this, nullptr);
}

absl::Status BucketReducer::Start(Step step) {
  step_ = step;
  reduced_ = {};
  if (exchange_ == nullptr) {
    num_left_ = finish_tasks_.size();
    for (FinishTask& task : finish_tasks_) context_->gate.Submit(&task);
    return absl::OkStatus();
  }
  num_left_ = sum_tasks_.size();
  for (SumTask& task : sum_tasks_) context_->gate.Submit(&task);
  return absl::OkStatus();
}

void BucketReducer::Cancel() {
  if (exchange_ != nullptr) exchange_->Cancel();
}

void BucketReducer::OnSumDone() {
  if (--num_left_ > 0) return;
  const absl::Status status = exchange_->Post(step_);
  if (!status.ok()) context_->observer->OnOperationFailed(status);
}

void BucketReducer::OnExchangeDone(transport::Exchange*, Step,
                                   const absl::Status& status) {
  if (!status.ok()) {
    context_->observer->OnOperationFailed(status);
    return;
  }
  payload_sent_ += payload_per_exchange_;
  num_left_ = finish_tasks_.size();
  for (FinishTask& task : finish_tasks_) context_->gate.Submit(&task);
}

void BucketReducer::OnFinishDone(const Reduced& partial) {
  reduced_.norm2.Merge(partial.norm2);
  reduced_.finite = reduced_.finite && partial.finite;
  if (--num_left_ > 0) return;
  context_->observer->OnBucketReduced(bucket_.id, reduced_);
}

void BucketReducer::SumPiece(int thread, const layout::Shard& shard,
                             const layout::Piece& piece) {
  float* out = window_.data() + plan_.sums[shard.owner.value()] +
               (piece.bucket_offset - shard.bucket_begin);
  for (const kernels::RankRange& ranks :
       context_->tree.ranges_of(context_->parts.node)) {
    SumLocalRanks(thread, ranks, piece, out);
    out += SliceElements(shard);
  }
}

void BucketReducer::SumLocalRanks(int thread, kernels::RankRange ranks,
                                  const layout::Piece& piece, float* out) {
  const Parts& parts = context_->parts;
  const int first = parts.layout->topology().FirstRank(parts.node).value();
  std::vector<const void*>& sources = context_->threads[thread].sources;
  for (int i = 0; i < ranks.count; ++i) {
    sources[i] = context_->GradientOf(ranks.first - first + i, piece);
  }
  parts.kernels->tree_sum(context_->dtype(piece),
                          std::span(sources).first(ranks.count), piece.size(),
                          out);
}

void BucketReducer::FinishPiece(int thread, const layout::Piece& piece,
                                Reduced* reduced) {
  const Parts& parts = context_->parts;
  std::vector<const float*>& sums = context_->threads[thread].sums;
  float* const out = parts.state_gradient.data() + piece.state_offset;
  if (exchange_ == nullptr) {
    SumLocalRanks(thread, context_->tree.ranges().front(), piece, out);
    sums[0] = out;
  } else {
    size_t next = 0;
    for (const layout::Shard& shard : bucket_.shards) {
      const int node = shard.owner.value();
      const float* sum =
          window_.data() +
          (shard.owner == parts.node ? plan_.sums : plan_.received)[node] +
          (piece.bucket_offset - own_.bucket_begin);
      for (int i = 0; i < context_->tree.num_ranges(shard.owner); ++i) {
        sums[next++] = sum;
        sum += SliceElements(own_);
      }
    }
  }
  parts.kernels->finish_mean(context_->tree.ranges(), sums,
                             parts.layout->topology().world_size(),
                             piece.size(), out);
  context_->AddNorm(out, piece.size(), reduced);
}

}  // namespace ballast::collective
