#include "server/collective/bucket_reducer.h"

#include <limits>
#include <utility>

#include "server/base/status_macros.h"

namespace ballast::collective {
namespace {

// One node has one batch.
BatchCut CutOf(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  return CutSumBatches(cut, cut.shards.size() > 1
                                ? context.parts.batch_bytes
                                : std::numeric_limits<int64_t>::max());
}

std::span<const layout::Chunk> ChunksOf(const layout::Shard& shard,
                                        const Batch& batch) {
  return std::span(shard.chunks).subspan(batch.first_chunk, batch.num_chunks());
}

// Elements, padding not counted.
int64_t SizeOf(const layout::Shard& shard, const Batch& batch) {
  int64_t size = 0;
  for (const layout::Chunk& chunk : ChunksOf(shard, batch)) {
    for (const layout::Piece& piece : chunk.pieces) size += piece.size();
  }
  return size;
}

}  // namespace

int64_t BucketReducer::WindowElements(const Context& context, BucketId bucket) {
  return PlanWindow(CutOf(context, bucket), context.tree, context.parts.node)
      .elements;
}

absl::StatusOr<std::unique_ptr<BucketReducer>> BucketReducer::Create(
    Context* context, BucketId bucket, std::span<float> window) {
  auto reducer = std::unique_ptr<BucketReducer>(
      new BucketReducer(context, bucket, window));
  RETURN_IF_ERROR(reducer->MakeBatches());
  return reducer;
}

BucketReducer::BucketReducer(Context* context, BucketId bucket,
                             std::span<float> window)
    : context_(context),
      bucket_(context->bucket(bucket)),
      own_(context->own_shard(bucket)),
      window_(window),
      cut_(CutOf(*context, bucket)),
      plan_(PlanWindow(cut_, context->tree, context->parts.node)),
      results_(own_.chunks.size()),
      pipeline_(context, [this] { Report(); }) {}

absl::Status BucketReducer::MakeBatches() {
  if (bucket_.shards.size() == 1) {
    pipeline_.AddLocal(FinishTasks(0));
    return absl::OkStatus();
  }
  for (size_t batch = 0; batch < cut_[0].size(); ++batch) {
    RETURN_IF_ERROR(MakeBatch(batch));
  }
  return absl::OkStatus();
}

absl::Status BucketReducer::MakeBatch(size_t batch) {
  BatchPipeline::BatchParts parts{
      .before = SumTasks(batch),
      .spec = context_->Spec(kReducePhase, bucket_.id, batch),
      .after = FinishTasks(batch)};
  const NodeRank self = context_->parts.node;
  const TreePlan& tree = context_->tree;
  const auto bytes = [this](int64_t begin, int64_t elements) {
    return std::as_writable_bytes(window_.subspan(begin, elements));
  };
  const Batch& own = cut_[self.value()][batch];
  const auto bytes_of = [this, batch](NodeRank from, NodeRank to) -> uint64_t {
    return context_->tree.num_ranges(from) *
           cut_[to.value()][batch].elements() * sizeof(float);
  };
  context_->Deliver(bytes_of, &parts.spec);
  for (const layout::Shard& shard : bucket_.shards) {
    const NodeRank peer = shard.owner;
    if (peer == self) continue;
    const Batch& theirs = cut_[peer.value()][batch];
    if (theirs.elements() > 0) {
      parts.spec.sends.push_back(
          {peer, bytes(plan_.sums[peer.value()][batch],
                       tree.num_ranges(self) * theirs.elements())});
      parts.payload_bytes +=
          tree.num_ranges(self) * SizeOf(shard, theirs) * sizeof(float);
    }
    if (own.elements() > 0) {
      parts.spec.receives.push_back(
          {peer, bytes(plan_.received[peer.value()][batch],
                       tree.num_ranges(peer) * own.elements())});
    }
  }
  return pipeline_.Add(std::move(parts));
}

std::vector<BatchPipeline::Work> BucketReducer::SumTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  for (size_t owner = 0; owner < cut_.size(); ++owner) {
    const layout::Shard& shard = bucket_.shards[owner];
    for (const layout::Chunk& chunk : ChunksOf(shard, cut_[owner][batch])) {
      tasks.push_back({[this, owner, batch, &chunk](int thread) {
        for (const layout::Piece& piece : chunk.pieces) {
          SumPiece(thread, owner, batch, piece);
        }
        return absl::OkStatus();
      }});
    }
  }
  return tasks;
}

std::vector<BatchPipeline::Work> BucketReducer::FinishTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const Batch& own = cut_[context_->parts.node.value()][batch];
  for (size_t i = own.first_chunk; i < own.end_chunk; ++i) {
    tasks.push_back({[this, batch, i](int thread) {
      results_[i] = {};
      for (const layout::Piece& piece : own_.chunks[i].pieces) {
        FinishPiece(thread, batch, piece, &results_[i]);
      }
      return absl::OkStatus();
    }});
  }
  return tasks;
}

void BucketReducer::Report() {
  Reduced reduced;
  for (const Reduced& partial : results_) reduced.Merge(partial);
  context_->observer->OnBucketReduced(bucket_.id, reduced);
}

void BucketReducer::SumPiece(int thread, size_t owner, size_t batch,
                             const layout::Piece& piece) {
  const Batch& cut = cut_[owner][batch];
  float* out = window_.data() + plan_.sums[owner][batch] +
               (piece.bucket_offset - cut.bucket_begin);
  for (const kernels::RankRange& ranks :
       context_->tree.ranges_of(context_->parts.node)) {
    SumLocalRanks(thread, ranks, piece, out);
    out += cut.elements();
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

void BucketReducer::FinishPiece(int thread, size_t batch,
                                const layout::Piece& piece, Reduced* reduced) {
  const Parts& parts = context_->parts;
  std::vector<const float*>& sums = context_->threads[thread].sums;
  float* const out = parts.state_gradient.data() + piece.state_offset;
  if (bucket_.shards.size() == 1) {
    SumLocalRanks(thread, context_->tree.ranges().front(), piece, out);
    sums[0] = out;
  } else {
    const Batch& own = cut_[parts.node.value()][batch];
    size_t next = 0;
    for (const layout::Shard& shard : bucket_.shards) {
      const float* sum = window_.data() +
                         plan_.received[shard.owner.value()][batch] +
                         (piece.bucket_offset - own.bucket_begin);
      for (int i = 0; i < context_->tree.num_ranges(shard.owner); ++i) {
        sums[next++] = sum;
        sum += own.elements();
      }
    }
  }
  parts.kernels->finish_mean(context_->tree.ranges(), sums,
                             parts.layout->topology().world_size(),
                             piece.size(), out);
  context_->AddNorm(out, piece.size(), reduced);
}

}  // namespace ballast::collective
