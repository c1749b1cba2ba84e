#include "server/collective/coded_reducer.h"

#include <algorithm>
#include <utility>

#include "kernels/canonical_tree.h"
#include "server/base/status_macros.h"

namespace ballast::collective {

int64_t CodedReducer::WindowBytes(const Context& context, BucketId bucket) {
  const layout::Bucket& cut = context.bucket(bucket);
  int64_t bytes = 0;
  for (const layout::Shard& shard : cut.shards) {
    const CodedSlice slice = PlanSlice(shard, context.gradient_codecs);
    const bool is_own = shard.owner == context.parts.node;
    bytes += slice.bytes * (is_own ? cut.shards.size() : 1);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<CodedReducer>> CodedReducer::Create(
    Context* context, BucketId bucket, std::span<std::byte> window) {
  auto reducer =
      std::unique_ptr<CodedReducer>(new CodedReducer(context, bucket, window));
  RETURN_IF_ERROR(reducer->PrepareExchange());
  reducer->MakeTasks();
  return reducer;
}

CodedReducer::CodedReducer(Context* context, BucketId bucket,
                           std::span<std::byte> window)
    : context_(context), bucket_(context->bucket(bucket)) {
  const auto take = [&window](int64_t bytes) {
    const std::span<std::byte> taken = window.first(bytes);
    window = window.subspan(bytes);
    return taken;
  };
  for (const layout::Shard& shard : bucket_.shards) {
    slices_.push_back(PlanSlice(shard, context->gradient_codecs));
    contributions_.push_back(take(slices_.back().bytes));
  }
  const int self = context->parts.node.value();
  for (const layout::Shard& shard : bucket_.shards) {
    own_slices_.push_back(shard.owner.value() == self
                              ? contributions_[self].data()
                              : take(slices_[self].bytes).data());
  }
}

absl::Status CodedReducer::PrepareExchange() {
  const NodeRank self = context_->parts.node;
  const int64_t own_bytes = slices_[self.value()].bytes;
  transport::ExchangeSpec spec = context_->Spec(kReducePhase, bucket_.id);
  for (const layout::Shard& shard : bucket_.shards) {
    const int peer = shard.owner.value();
    if (shard.owner == self) continue;
    if (slices_[peer].bytes > 0) {
      spec.sends.push_back({shard.owner, contributions_[peer]});
      payload_per_exchange_ += slices_[peer].payload;
    }
    if (own_bytes > 0) {
      spec.receives.push_back(
          {shard.owner, {own_slices_[peer], static_cast<size_t>(own_bytes)}});
    }
  }
  ASSIGN_OR_RETURN(exchange_, context_->parts.transport->Prepare(spec, this));
  return absl::OkStatus();
}

void CodedReducer::MakeTasks() {
  size_t num_chunks = 0;
  for (const CodedSlice& slice : slices_) num_chunks += slice.chunks.size();
  encode_tasks_.reserve(num_chunks);
  encode_errors_.resize(num_chunks);
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    std::byte* const slice = contributions_[owner].data();
    for (const std::vector<CodedRun>& runs : slices_[owner].chunks) {
      ErrorSums* const errors = &encode_errors_[encode_tasks_.size()];
      encode_tasks_.emplace_back(
          &context_->gate,
          [this, slice, errors, runs = std::span(runs)](int thread) {
            EncodeChunk(thread, runs, slice, errors);
          },
          [this] { OnEncoded(); });
    }
  }
  const auto& own_chunks = slices_[context_->parts.node.value()].chunks;
  // A node that owns nothing of the bucket has one task, with nothing to do.
  const size_t num_finish = std::max<size_t>(1, own_chunks.size());
  finish_tasks_.reserve(num_finish);
  finish_results_.resize(num_finish);
  for (size_t i = 0; i < num_finish; ++i) {
    std::span<const CodedRun> runs;
    if (i < own_chunks.size()) runs = own_chunks[i];
    finish_tasks_.emplace_back(
        &context_->gate,
        [this, runs, reduced = &finish_results_[i]](int) {
          FinishChunk(runs, reduced);
        },
        [this] { OnFinished(); });
  }
}

absl::Status CodedReducer::Start(Step step) {
  step_ = step;
  num_left_ = encode_tasks_.size();
  for (ChunkTask& task : encode_tasks_) context_->gate.Submit(&task);
  return absl::OkStatus();
}

void CodedReducer::OnEncoded() {
  if (--num_left_ > 0) return;
  errors_ = {};
  for (const ErrorSums& errors : encode_errors_) errors_.Add(errors);
  const absl::Status status = exchange_->Post(step_);
  if (!status.ok()) context_->observer->OnOperationFailed(status);
}

void CodedReducer::OnExchangeDone(transport::Exchange*, Step,
                                  const absl::Status& status) {
  if (!status.ok()) {
    context_->observer->OnOperationFailed(status);
    return;
  }
  payload_sent_ += payload_per_exchange_;
  num_left_ = finish_tasks_.size();
  for (ChunkTask& task : finish_tasks_) context_->gate.Submit(&task);
}

void CodedReducer::OnFinished() {
  if (--num_left_ > 0) return;
  Reduced reduced;
  for (const Reduced& partial : finish_results_) {
    reduced.norm2.Merge(partial.norm2);
    reduced.finite = reduced.finite && partial.finite;
  }
  context_->observer->OnBucketReduced(bucket_.id, reduced);
}

void CodedReducer::EncodeChunk(int thread, std::span<const CodedRun> runs,
                               std::byte* slice, ErrorSums* errors) {
  *errors = {};
  const Parts& parts = context_->parts;
  ThreadPointers& pointers = context_->threads[thread];
  float* const sum = pointers.scratch.data();
  for (const CodedRun& coded : runs) {
    const layout::Piece& piece = *coded.piece;
    for (size_t i = 0; i < parts.gradients.size(); ++i) {
      pointers.sources[i] = context_->GradientOf(static_cast<int>(i), piece);
    }
    parts.kernels->tree_sum(context_->dtype(piece), pointers.sources,
                            piece.size(), sum);
    // Each node's contribution is another encoding of the element's gradient.
    const Run run = context_->RunOf(coded, step_, parts.node.value());
    coded.codec->Encode(run, sum, slice + coded.offset);
    errors->Add(Sample(*coded.codec, run, sum));
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
