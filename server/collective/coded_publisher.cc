#include "server/collective/coded_publisher.h"

#include <utility>

#include "server/base/status_macros.h"

namespace ballast::collective {

int64_t CodedPublisher::WindowBytes(const Context& context,
                                    const ChunkCoder& coder, BucketId bucket) {
  int64_t bytes = 0;
  for (const layout::Shard& shard : context.bucket(bucket).shards) {
    const CodedSlice slice =
        PlanSlice(shard, context.weight_codecs, coder.header_bytes());
    bytes += context.may_change_codecs() ? WidestBytes(slice) : slice.bytes;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<CodedPublisher>> CodedPublisher::Create(
    Context* context, const ChunkCoder* coder, BucketId bucket,
    std::span<std::byte> window) {
  auto publisher = std::unique_ptr<CodedPublisher>(
      new CodedPublisher(context, coder, bucket, window));
  for (size_t batch = 0; batch < publisher->cut_[0].size(); ++batch) {
    RETURN_IF_ERROR(publisher->MakeBatch(batch));
  }
  return publisher;
}

CodedPublisher::CodedPublisher(Context* context, const ChunkCoder* coder,
                               BucketId bucket, std::span<std::byte> window)
    : context_(context),
      coder_(coder),
      bucket_(context->bucket(bucket)),
      cut_(CutCodedBatches(bucket_, context->weight_codecs,
                           context->parts.batch_bytes, coder->header_bytes())),
      pipeline_(context, [context, bucket] {
        context->observer->OnBucketPublished(bucket);
      }) {
  for (const layout::Shard& shard : bucket_.shards) {
    slices_.push_back(
        PlanSlice(shard, context->weight_codecs, coder->header_bytes()));
    bytes_.push_back(window.data());
    window = window.subspan(slices_.back().bytes);
  }
  const std::vector<CodedChunk>& own = slices_[context->self()].chunks;
  for (size_t i = 0; i < own.size(); ++i) {
    const ChunkId id{bucket, NodeRank(context->self()), i};
    const size_t num_runs = own[i].runs.size();
    errors_.push_back(
        context->parts.published != nullptr
            ? context->parts.published->ErrorsOf(id, num_runs)
            : std::span<ErrorSums>(own_errors_.emplace_back(num_runs)));
  }
}

absl::Status CodedPublisher::MakeBatch(size_t batch) {
  BatchPipeline::BatchParts parts{
      .before = EncodeTasks(batch),
      .spec = context_->Spec(kPublishPhase, bucket_.id, batch),
      .after = DecodeTasks(batch)};
  const int self = context_->self();
  const Batch& own = cut_[self][batch];
  const auto bytes_of = [this, batch](NodeRank owner) {
    const int i = owner.value();
    return slices_[i].BytesOf(cut_[i][batch], bytes_[i]).size();
  };
  parts.spec.turn = context_->WindowOf(bucket_.id);
  context_->Gather(bytes_of, &parts.spec);
  for (const layout::Shard& shard : bucket_.shards) {
    const int peer = shard.owner.value();
    if (peer == self) continue;
    const NodeRank node = context_->NodeOf(shard.owner);
    const Batch& theirs = cut_[peer][batch];
    if (own.num_chunks() > 0) {
      parts.spec.sends.push_back(
          {node, slices_[self].BytesOf(own, bytes_[self])});
      parts.payload_bytes += PayloadOf(slices_[self].ChunksOf(own));
    }
    if (theirs.num_chunks() > 0) {
      parts.spec.receives.push_back(
          {node, slices_[peer].BytesOf(theirs, bytes_[peer])});
    }
  }
  return pipeline_.Add(std::move(parts));
}

std::vector<BatchPipeline::Work> CodedPublisher::EncodeTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const int self = context_->self();
  const Batch& own = cut_[self][batch];
  for (size_t i = own.first_chunk; i < own.end_chunk; ++i) {
    const ChunkId id{bucket_.id, NodeRank(self), i};
    tasks.push_back({[this, self, i, id](int thread) {
                       return coder_->Encode(thread, pipeline_.step(), id,
                                             slices_[self].chunks[i],
                                             bytes_[self], errors_[i]);
                     },
                     id});
  }
  return tasks;
}

std::vector<BatchPipeline::Work> CodedPublisher::DecodeTasks(size_t batch) {
  std::vector<BatchPipeline::Work> tasks;
  const int self = context_->self();
  for (const layout::Shard& shard : bucket_.shards) {
    const int owner = shard.owner.value();
    if (owner == self) continue;
    const Batch& cut = cut_[owner][batch];
    for (size_t i = cut.first_chunk; i < cut.end_chunk; ++i) {
      const ChunkId id{bucket_.id, shard.owner, i};
      tasks.push_back(
          {[this, owner, i, id](int thread) {
             return coder_->Decode(thread, pipeline_.step(), id,
                                   slices_[owner].chunks[i], bytes_[owner]);
           },
           id,
           [this, owner, i] {
             return coder_->Told(slices_[owner].chunks[i], bytes_[owner]);
           }});
    }
  }
  return tasks;
}

void CodedPublisher::AddErrors(PathErrors* sum) const {
  if (context_->group() > 0) return;  // the first group tells the same
  const CodedSlice& own = slices_[context_->self()];
  for (size_t i = 0; i < own.chunks.size(); ++i) {
    context_->AddErrors(layout::Path::kWeights, own.chunks[i].runs, errors_[i],
                        sum);
  }
}

}  // namespace ballast::collective
