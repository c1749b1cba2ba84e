#include "server/collective/bucket_reducer.h"

#include <array>
#include <limits>
#include <utility>

#include "kernels/dtype.h"
#include "server/base/status_macros.h"

namespace ballast::collective {
namespace {

// One node has one batch.
BatchCut CutOf(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  return CutSumBatches(cut, context.has_peers()
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
      pipeline_(context,
                [this] { context_->TellReduced(bucket_.id, results_); }) {}

absl::Status BucketReducer::MakeBatches() {
  if (!context_->has_peers()) {
    pipeline_.AddLocal(FinishTasks(0));
    return absl::OkStatus();
  }
  if (context_->has_groups() && context_->num_owners() > 1) PlanGroup();
  for (size_t batch = 0; batch < cut_[0].size(); ++batch) {
    RETURN_IF_ERROR(MakeBatch(batch));
  }
  return absl::OkStatus();
}

absl::Status BucketReducer::MakeBatch(size_t batch) {
  BatchPipeline::BatchParts parts{.before = SumTasks(batch),
                                  .after = FinishTasks(batch)};
  if (context_->num_owners() == 1) {
    parts.spec = AcrossGroups(batch, &parts.payload_bytes);
    return pipeline_.Add(std::move(parts));
  }
  parts.spec = WithinGroup(batch, &parts.payload_bytes);
  if (context_->has_groups()) {
    parts.more.push_back({.before = GroupTasks(batch),
                          .spec = AcrossGroups(batch, &parts.payload_bytes)});
  }
  return pipeline_.Add(std::move(parts));
}

transport::ExchangeSpec BucketReducer::WithinGroup(size_t batch,
                                                   uint64_t* payload_bytes) {
  transport::ExchangeSpec spec =
      context_->Spec(kReducePhase, bucket_.id, batch);
  const int self = context_->self();
  const TreePlan& tree = context_->tree;
  const int num_sums = tree.num_ranges(context_->parts.node);
  const Batch& own = cut_[self][batch];
  const auto bytes_of = [this, batch](NodeRank from, NodeRank to) -> uint64_t {
    const int owner = context_->topology().OwnerOf(to).value();
    return context_->tree.num_ranges(from) * cut_[owner][batch].elements() *
           sizeof(float);
  };
  context_->Deliver(bytes_of, &spec);
  for (const layout::Shard& shard : bucket_.shards) {
    const int owner = shard.owner.value();
    if (owner == self) continue;
    const NodeRank peer = context_->NodeOf(shard.owner);
    const Batch& theirs = cut_[owner][batch];
    if (theirs.elements() > 0) {
      spec.sends.push_back({peer, Bytes(plan_.sums[owner][batch],
                                        num_sums * theirs.elements())});
      *payload_bytes += num_sums * SizeOf(shard, theirs) * sizeof(float);
    }
    if (own.elements() > 0) {
      spec.receives.push_back(
          {peer, Bytes(plan_.received[owner][batch],
                       tree.num_ranges(peer) * own.elements())});
    }
  }
  return spec;
}

transport::ExchangeSpec BucketReducer::AcrossGroups(size_t batch,
                                                    uint64_t* payload_bytes) {
  const TreePlan& tree = context_->tree;
  const Batch& own = cut_[context_->self()][batch];
  *payload_bytes += (context_->num_groups() - 1) *
                    tree.num_group_ranges(context_->group()) *
                    SizeOf(own_, own) * sizeof(float);
  return context_->AcrossGroups(bucket_.id, batch, [&](int group) {
    return Bytes(plan_.groups[group][batch],
                 tree.num_group_ranges(group) * own.elements());
  });
}

std::span<std::byte> BucketReducer::Bytes(int64_t begin, int64_t elements) {
  return std::as_writable_bytes(window_.subspan(begin, elements));
}

void BucketReducer::PlanGroup() {
  const TreePlan& tree = context_->tree;
  std::vector<kernels::RankRange> nodes;
  group_places_.resize(cut_[0].size());
  for (int i = 0; i < context_->num_owners(); ++i) {
    const auto ranges = tree.ranges_of(context_->NodeOf(NodeRank(i)));
    nodes.insert(nodes.end(), ranges.begin(), ranges.end());
    AddPlaces(plan_.received[i], ranges.size());
  }
  const auto sums = tree.ranges_of_group(context_->group());
  AddPlaces(plan_.groups[context_->group()], sums.size());
  group_adds_ = PlanGroupSums(nodes, sums);
}

void BucketReducer::AddPlaces(const std::vector<int64_t>& runs,
                              size_t num_sums) {
  for (size_t batch = 0; batch < group_places_.size(); ++batch) {
    for (size_t i = 0; i < num_sums; ++i) {
      group_places_[batch].push_back(
          runs[batch] + i * cut_[context_->self()][batch].elements());
    }
  }
}

std::vector<BatchPipeline::Work> BucketReducer::GroupTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const Batch& own = cut_[context_->self()][batch];
  for (const layout::Chunk& chunk : ChunksOf(own_, own)) {
    tasks.push_back({[this, batch, &own, &chunk](int) {
      for (const layout::Piece& piece : chunk.pieces) {
        AddGroup(batch, piece.bucket_offset - own.bucket_begin, piece.size());
      }
      return absl::OkStatus();
    }});
  }
  return tasks;
}

void BucketReducer::AddGroup(size_t batch, int64_t offset, int64_t count) {
  const auto at = [&](int place) {
    return window_.data() + group_places_[batch][place] + offset;
  };
  for (const GroupAdd& add : group_adds_) {
    std::array<const void*, 2> sources = {at(add.left), nullptr};
    const size_t num_sources = add.right < 0 ? 1 : 2;
    if (num_sources == 2) sources[1] = at(add.right);
    context_->parts.kernels->tree_sum(kernels::DType::kFloat32,
                                      std::span(sources).first(num_sources),
                                      count, at(add.into));
  }
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
  const Batch& own = cut_[context_->self()][batch];
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
  const TreePlan& tree = context_->tree;
  size_t num_sums = 0;
  const auto add = [&](int64_t begin, int count) {
    const Batch& own = cut_[context_->self()][batch];
    const float* sum =
        window_.data() + begin + (piece.bucket_offset - own.bucket_begin);
    for (int i = 0; i < count; ++i, sum += own.elements()) {
      sums[num_sums++] = sum;
    }
  };
  if (!context_->has_peers()) {
    SumLocalRanks(thread, tree.ranges().front(), piece, out);
    sums[num_sums++] = out;
  } else if (context_->has_groups()) {
    for (int g = 0; g < context_->num_groups(); ++g) {
      add(plan_.groups[g][batch], tree.num_group_ranges(g));
    }
  } else {
    for (const layout::Shard& shard : bucket_.shards) {
      add(plan_.received[shard.owner.value()][batch],
          tree.num_ranges(shard.owner));
    }
  }
  parts.kernels->finish_mean(
      context_->has_groups() ? tree.group_ranges() : tree.ranges(),
      std::span(sums).first(num_sums), context_->topology().world_size(),
      piece.size(), out);
  context_->AddNorm(out, piece.size(), reduced);
}

}  // namespace ballast::collective
