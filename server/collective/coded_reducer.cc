#include "server/collective/coded_reducer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/canonical_tree.h"
#include "kernels/dtype.h"
#include "server/base/status_macros.h"
#include "server/optimizer/residuals.h"

namespace ballast::collective {

int64_t CodedReducer::WindowBytes(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  int64_t bytes = 0;
  for (const layout::Shard& shard : cut.shards) {
    const CodedSlice slice = PlanSlice(shard, context.gradient_codecs);
    const bool is_own = shard.owner == context.parts.node;
    bytes += (context.may_change_codecs() ? WidestBytes(slice) : slice.bytes) *
             (is_own ? cut.shards.size() : 1);
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
      pipeline_(context, [this] { Report(); }) {
  const auto take = [&window](int64_t bytes) {
    std::byte* const taken = window.data();
    window = window.subspan(bytes);
    return taken;
  };
  for (const layout::Shard& shard : bucket_.shards) {
    slices_.push_back(PlanSlice(shard, context->gradient_codecs));
    contributions_.push_back(take(slices_.back().bytes));
    errors_.emplace_back();
    residual_norms2_.emplace_back(slices_.back().chunks.size());
    for (const CodedChunk& chunk : slices_.back().chunks) {
      errors_.back().emplace_back(chunk.runs.size());
    }
  }
  const int self = context->parts.node.value();
  finish_results_.resize(slices_[self].chunks.size());
  for (const layout::Shard& shard : bucket_.shards) {
    own_slices_.push_back(shard.owner.value() == self
                              ? contributions_[self]
                              : take(slices_[self].bytes));
  }
}

absl::Status CodedReducer::MakeBatch(size_t batch) {
  BatchPipeline::BatchParts parts{
      .before = EncodeTasks(batch),
      .spec = context_->Spec(kReducePhase, bucket_.id, batch),
      .after = FinishTasks(batch)};
  const int self = context_->parts.node.value();
  // All nodes send an owner equally much.
  const auto bytes_of = [this, batch](NodeRank, NodeRank to) {
    const int owner = to.value();
    return slices_[owner]
        .BytesOf(cut_[owner][batch], contributions_[owner])
        .size();
  };
  context_->Deliver(bytes_of, &parts.spec);
  for (const layout::Shard& shard : bucket_.shards) {
    const int peer = shard.owner.value();
    if (peer == self) continue;
    const Batch& theirs = cut_[peer][batch];
    const Batch& own = cut_[self][batch];
    if (theirs.num_chunks() > 0) {
      parts.spec.sends.push_back(
          {shard.owner, slices_[peer].BytesOf(theirs, contributions_[peer])});
      parts.payload_bytes += PayloadOf(slices_[peer].ChunksOf(theirs));
    }
    if (own.num_chunks() > 0) {
      parts.spec.receives.push_back(
          {shard.owner, slices_[self].BytesOf(own, own_slices_[peer])});
    }
  }
  return pipeline_.Add(std::move(parts));
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
  const int self = context_->parts.node.value();
  const Batch& own = cut_[self][batch];
  for (size_t i = own.first_chunk; i < own.end_chunk; ++i) {
    tasks.push_back({[this, self, i](int) {
      FinishChunk(slices_[self].chunks[i].runs, &finish_results_[i]);
      return absl::OkStatus();
    }});
  }
  return tasks;
}

void CodedReducer::Report() {
  Reduced reduced;
  for (const Reduced& partial : finish_results_) reduced.Merge(partial);
  context_->observer->OnBucketReduced(bucket_.id, reduced);
}

void CodedReducer::AddErrors(PathErrors* sum) const {
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
        context_->RunOf(coded, pipeline_.step(), parts.node.value());
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

void CodedReducer::FinishChunk(std::span<const CodedRun> runs,
                               Reduced* reduced) {
  *reduced = {};
  const Parts& parts = context_->parts;
  const kernels::RankRange whole{0, parts.layout->topology().world_size()};
  for (const CodedRun& coded : runs) {
    const layout::Piece& piece = *coded.piece;
    float* const out = parts.state_gradient.data() + piece.state_offset;
    coded.codec->Decode(piece.size(), own_slices_[0] + coded.offset, out);
    for (size_t node = 1; node < own_slices_.size(); ++node) {
      coded.codec->DecodeAdd(piece.size(), own_slices_[node] + coded.offset,
                             out);
    }
    const float* const sum = out;
    parts.kernels->finish_mean({&whole, 1}, {&sum, 1}, whole.count,
                               piece.size(), out);
    context_->AddNorm(out, piece.size(), reduced);
  }
}

}  // namespace ballast::collective
