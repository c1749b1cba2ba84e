#include "server/collective/bucket_publisher.h"

#include <utility>

#include "kernels/dtype.h"
#include "server/base/status_macros.h"

namespace ballast::collective {

absl::StatusOr<std::unique_ptr<BucketPublisher>> BucketPublisher::Create(
    Context* context, BucketId bucket) {
  auto publisher =
      std::unique_ptr<BucketPublisher>(new BucketPublisher(context, bucket));
  if (context->num_owners() > 1) {
    RETURN_IF_ERROR(publisher->MakeBatch());
  } else {
    publisher->pipeline_.AddLocal({});
  }
  return publisher;
}

BucketPublisher::BucketPublisher(Context* context, BucketId bucket)
    : context_(context), bucket_(bucket), pipeline_(context, [this] {
        context_->observer->OnBucketPublished(bucket_);
      }) {}

absl::Status BucketPublisher::MakeBatch() {
  const layout::Shard& own = context_->own_shard(bucket_);
  BatchPipeline::BatchParts parts{
      .spec = context_->Spec(kPublishPhase, bucket_, 0)};
  const auto bytes_of = [this](NodeRank owner) {
    const layout::Shard& shard = context_->parts.layout->shard(bucket_, owner);
    return context_->WeightsOf(shard).size();
  };
  context_->Gather(bytes_of, &parts.spec);
  for (const layout::Shard& shard : context_->bucket(bucket_).shards) {
    if (shard.owner == own.owner) continue;
    const NodeRank peer = context_->NodeOf(shard.owner);
    if (!own.pieces.empty()) {
      parts.spec.sends.push_back({peer, context_->WeightsOf(own)});
      for (const layout::Piece& piece : own.pieces) {
        parts.payload_bytes += piece.size() * SizeOf(context_->dtype(piece));
      }
    }
    if (!shard.pieces.empty()) {
      parts.spec.receives.push_back({peer, context_->WeightsOf(shard)});
    }
  }
  return pipeline_.Add(std::move(parts));
}

}  // namespace ballast::collective
