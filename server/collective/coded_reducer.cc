#include "server/collective/coded_reducer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kernels/canonical_tree.h"
#include "kernels/dtype.h"
#include "server/base/status_macros.h"
#include "server/optimizer/residuals.h"

namespace ballast::collective {

int64_t CodedReducer::WindowBytes(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  int64_t bytes = 0;
  // Of the own slice, each contributor's and then each partition group's; a
  // group of one node has its own from the beginning.
  const int num_own = (context.has_groups() && context.num_owners() == 1
                           ? 0
                           : context.num_owners()) +
                      (context.has_groups() ? context.num_groups() : 0);
  for (const layout::Shard& shard : cut.shards) {
    const CodedSlice slice = PlanSlice(shard, context.gradient_codecs);
    const bool is_own = shard.owner.value() == context.self();
    bytes += (context.may_change_codecs() ? WidestBytes(slice) : slice.bytes) *
             (is_own ? num_own : 1);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<CodedReducer>> CodedReducer::Create(
    Context* context, BucketId bucket, std::span<std::byte> window) {
  auto reducer =
      std::unique_ptr<CodedReducer>(new CodedReducer(context, bucket, window));
  for (size_t batch = 0; batch < reducer->cut_[0].size(); ++batch) {
    RETURN_IF_ERROR(reducer->MakeBatch(batch));
  }
  return reducer;
}

CodedReducer::CodedReducer(Context* context, BucketId bucket,
                           std::span<std::byte> window)
    : context_(context),
      bucket_(context->bucket(bucket)),
      cut_(CutCodedBatches(bucket_, context->gradient_codecs,
                           context->parts.batch_bytes)),
      pipeline_(context, [this] {
        context_->TellReduced(bucket_.id, finish_results_);
      }) {
  const auto take = [&window](int64_t bytes) {
    std::byte* const taken = window.data();
    window = window.subspan(bytes);
    return taken;
  };
  for (const layout::Shard& shard : bucket_.shards) {
    slices_.push_back(PlanSlice(shard, context->gradient_codecs));
    contributions_.push_back(is_group_of_one() ? nullptr
                                               : take(slices_.back().bytes));
    errors_.emplace_back();
    residual_norms2_.emplace_back(slices_.back().chunks.size(),
                                  std::numeric_limits<double>::quiet_NaN());
    for (const CodedChunk& chunk : slices_.back().chunks) {
      errors_.back().emplace_back(chunk.runs.size());
    }
  }
  const int self = context->self();
  finish_results_.resize(slices_[self].chunks.size());
  for (const layout::Shard& shard : bucket_.shards) {
    own_slices_.push_back(shard.owner.value() == self
                              ? contributions_[self]
                              : take(slices_[self].bytes));
  }
  if (!context->has_groups()) return;
  for (int g = 0; g < context->num_groups(); ++g) {
    group_slices_.push_back(take(slices_[self].bytes));
  }
  for (const CodedChunk& chunk : slices_[self].chunks) {
    group_errors_.emplace_back(chunk.runs.size());
  }
  if (is_group_of_one()) contributions_[self] = group_slices_[context->group()];
}

absl::Status CodedReducer::MakeBatch(size_t batch) {
  BatchPipeline::BatchParts parts{.before = EncodeTasks(batch),
                                  .after = FinishTasks(batch)};
  if (is_group_of_one()) {
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

transport::ExchangeSpec CodedReducer::WithinGroup(size_t batch,
                                                  uint64_t* payload_bytes) {
  transport::ExchangeSpec spec =
      context_->Spec(kReducePhase, bucket_.id, batch);
  const int self = context_->self();
  // All nodes send an owner equally much.
  const auto bytes_of = [this, batch](NodeRank, NodeRank to) {
    const int owner = context_->topology().OwnerOf(to).value();
    return slices_[owner]
        .BytesOf(cut_[owner][batch], contributions_[owner])
        .size();
  };
  context_->Deliver(bytes_of, &spec);
  for (const layout::Shard& shard : bucket_.shards) {
    const int owner = shard.owner.value();
    if (owner == self) continue;
    const NodeRank peer = context_->NodeOf(shard.owner);
    const Batch& theirs = cut_[owner][batch];
    const Batch& own = cut_[self][batch];
    if (theirs.num_chunks() > 0) {
      spec.sends.push_back(
          {peer, slices_[owner].BytesOf(theirs, contributions_[owner])});
      *payload_bytes += PayloadOf(slices_[owner].ChunksOf(theirs));
    }
    if (own.num_chunks() > 0) {
      spec.receives.push_back(
          {peer, slices_[self].BytesOf(own, own_slices_[owner])});
    }
  }
  return spec;
}

transport::ExchangeSpec CodedReducer::AcrossGroups(size_t batch,
                                                   uint64_t* payload_bytes) {
  const CodedSlice& slice = slices_[context_->self()];
  const Batch& own = cut_[context_->self()][batch];
  *payload_bytes +=
      (context_->num_groups() - 1) * PayloadOf(slice.ChunksOf(own));
  return context_->AcrossGroups(bucket_.id, batch, [&](int group) {
    return slice.BytesOf(own, group_slices_[group]);
  });
}

std::vector<BatchPipeline::Work> CodedReducer::EncodeTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    const Batch& cut = cut_[owner][batch];
    for (size_t i = cut.first_chunk; i < cut.end_chunk; ++i) {
      tasks.push_back({[this, owner, i](int thread) {
        EncodeChunk(thread, slices_[owner].chunks[i].runs,
                    contributions_[owner], errors_[owner][i],
                    &residual_norms2_[owner][i]);
        return absl::OkStatus();
      }});
    }
  }
  return tasks;
}

std::vector<BatchPipeline::Work> CodedReducer::FinishTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const int self = context_->self();
  const Batch& own = cut_[self][batch];
  for (size_t i = own.first_chunk; i < own.end_chunk; ++i) {
    tasks.push_back({[this, self, i](int) {
      FinishChunk(slices_[self].chunks[i].runs, &finish_results_[i]);
      return absl::OkStatus();
    }});
  }
  return tasks;
}

std::vector<BatchPipeline::Work> CodedReducer::GroupTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const int self = context_->self();
  const Batch& own = cut_[self][batch];
  for (size_t i = own.first_chunk; i < own.end_chunk; ++i) {
    tasks.push_back({[this, self, i](int thread) {
      EncodeGroupChunk(thread, slices_[self].chunks[i].runs, group_errors_[i]);
      return absl::OkStatus();
    }});
  }
  return tasks;
}

void CodedReducer::AddErrors(PathErrors* sum) const {
  for (size_t i = 0; i < group_errors_.size(); ++i) {
    context_->AddErrors(layout::Path::kGradients,
                        slices_[context_->self()].chunks[i].runs,
                        group_errors_[i], sum);
  }
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    for (size_t i = 0; i < slices_[owner].chunks.size(); ++i) {
      context_->AddErrors(layout::Path::kGradients,
                          slices_[owner].chunks[i].runs, errors_[owner][i],
                          sum);
    }
  }
}

void CodedReducer::EncodeChunk(int thread, std::span<const CodedRun> runs,
                               std::byte* slice, std::span<ErrorSums> errors,
                               double* residual_norm2) {
  *residual_norm2 = 0;
  const Parts& parts = context_->parts;
  ThreadPointers& pointers = context_->threads[thread];
  float* const sum = pointers.scratch.data();
  for (size_t r = 0; r < runs.size(); ++r) {
    const CodedRun& coded = runs[r];
    const layout::Piece& piece = *coded.piece;
    for (size_t i = 0; i < parts.gradients.size(); ++i) {
      pointers.sources[i] = context_->GradientOf(static_cast<int>(i), piece);
    }
    parts.kernels->tree_sum(context_->dtype(piece), pointers.sources,
                            piece.size(), sum);
    // Each node's contribution is another encoding of the element's gradient.
    const Run run =
        is_group_of_one()
            ? context_->GroupRunOf(coded, pipeline_.step())
            : context_->RunOf(coded, pipeline_.step(), parts.node.value());
    if (context_->feeds_back(piece.tensor)) {
      *residual_norm2 +=
          EncodeWithResidual(coded, run, sum, slice + coded.offset);
    } else {
      coded.codec->Encode(run, sum, slice + coded.offset);
    }
    context_->Meter(layout::Path::kGradients, coded, run, pipeline_.step(), sum,
                    sum, sum, &errors[r]);
  }
}

// kernels/FORMAT.md 10. One run stays in the cache meanwhile.
double CodedReducer::EncodeWithResidual(const CodedRun& coded, const Run& run,
                                        float* sum, std::byte* out) {
  const kernels::Kernels& kernels = *context_->parts.kernels;
  optimizer::Residuals& residuals = *context_->parts.residuals;
  const int read =
      optimizer::Residuals::VersionAt(context_->parts.optimizer_step);
  if (context_->parts.guard != nullptr) {
    context_->parts.guard->BeforeResiduals(1 - read, bucket_.id);
  }
  const int64_t offset =
      residuals.OffsetOf(bucket_.id) + coded.piece->bucket_offset;
  const float* const before = residuals.version(read).data() + offset;
  float* const after = residuals.version(1 - read).data() + offset;
  const std::array<const void*, 2> terms = {sum, before};
  kernels.tree_sum(kernels::DType::kFloat32, terms, run.count, sum);
  coded.codec->Encode(run, sum, out);
  coded.codec->Decode(run.count, out, after);
  double norm2 = 0;
  for (int64_t begin = 0; begin < run.count; begin += layout::kCellElements) {
    const int64_t count = std::min(layout::kCellElements, run.count - begin);
    alignas(64) std::array<float, layout::kCellElements> left;
    kernels.subtract(sum + begin, after + begin, kernels::DType::kFloat32,
                     count, left.data());
    std::copy_n(left.data(), count, after + begin);
    norm2 += kernels.cell_norm(left.data(), count).norm2;
  }
  return norm2;
}

double CodedReducer::residual_norm2() const {
  double norm2 = 0;
  for (const std::vector<double>& of_owner : residual_norms2_) {
    for (const double of_chunk : of_owner) norm2 += of_chunk;
  }
  return norm2;
}

void CodedReducer::EncodeGroupChunk(int thread, std::span<const CodedRun> runs,
                                    std::span<ErrorSums> errors) {
  float* const sum = context_->threads[thread].scratch.data();
  std::byte* const slice = group_slices_[context_->group()];
  for (size_t r = 0; r < runs.size(); ++r) {
    AddContributions(runs[r], own_slices_, sum);
    const Run run = context_->GroupRunOf(runs[r], pipeline_.step());
    runs[r].codec->Encode(run, sum, slice + runs[r].offset);
    context_->Meter(layout::Path::kGradients, runs[r], run, pipeline_.step(),
                    sum, sum, sum, &errors[r]);
  }
}

void CodedReducer::AddContributions(const CodedRun& coded,
                                    std::span<std::byte* const> slices,
                                    float* out) const {
  const int64_t count = coded.piece->size();
  coded.codec->Decode(count, slices[0] + coded.offset, out);
  for (const std::byte* const slice : slices.subspan(1)) {
    coded.codec->DecodeAdd(count, slice + coded.offset, out);
  }
}

void CodedReducer::FinishChunk(std::span<const CodedRun> runs,
                               Reduced* reduced) {
  *reduced = {};
  const Parts& parts = context_->parts;
  const kernels::RankRange whole{0, parts.layout->topology().world_size()};
  for (const CodedRun& coded : runs) {
    const layout::Piece& piece = *coded.piece;
    float* const out = parts.state_gradient.data() + piece.state_offset;
    AddContributions(coded,
                     context_->has_groups() ? group_slices_ : own_slices_, out);
    const float* const sum = out;
    parts.kernels->finish_mean({&whole, 1}, {&sum, 1}, whole.count,
                               piece.size(), out);
    context_->AddNorm(out, piece.size(), reduced);
  }
}

}  // namespace ballast::collective
