#include "server/collective/bucket_publisher.h"

#include <utility>

#include "server/base/status_macros.h"

namespace ballast::collective {

absl::StatusOr<std::unique_ptr<BucketPublisher>> BucketPublisher::Create(
    Context* context, BucketId bucket) {
  auto publisher =
      std::unique_ptr<BucketPublisher>(new BucketPublisher(context, bucket));
  if (context->parts.layout->topology().num_nodes > 1) {
    RETURN_IF_ERROR(publisher->PrepareExchange());
  }
  return publisher;
}

BucketPublisher::BucketPublisher(Context* context, BucketId bucket)
    : context_(context), bucket_(bucket), done_(&context->gate, [this] {
        context_->observer->OnBucketPublished(bucket_);
      }) {}

std::span<std::byte> BucketPublisher::BytesOf(
    const layout::Shard& shard) const {
  const layout::Piece& first = shard.pieces.front();
  const layout::Piece& last = shard.pieces.back();
  const layout::Layout& layout = *context_->parts.layout;
  const uint64_t begin = layout.place(first.tensor).weight_offset +
                         first.begin * SizeOf(context_->dtype(first));
  const uint64_t end = layout.place(last.tensor).weight_offset +
                       last.end * SizeOf(context_->dtype(last));
  return context_->parts.weights.subspan(begin, end - begin);
}

absl::Status BucketPublisher::PrepareExchange() {
  const layout::Shard& own = context_->own_shard(bucket_);
  transport::ExchangeSpec spec = context_->Spec(kPublishPhase, bucket_);
  for (const layout::Shard& shard : context_->bucket(bucket_).shards) {
    if (shard.owner == own.owner) continue;
    if (!own.pieces.empty()) {
      spec.sends.push_back({shard.owner, BytesOf(own)});
      for (const layout::Piece& piece : own.pieces) {
        payload_per_exchange_ += piece.size() * SizeOf(context_->dtype(piece));
      }
    }
    if (!shard.pieces.empty()) {
      spec.receives.push_back({shard.owner, BytesOf(shard)});
    }
  }
  ASSIGN_OR_RETURN(exchange_, context_->parts.transport->Prepare(spec, this));
  return absl::OkStatus();
}

absl::Status BucketPublisher::Start(Step step) {
  if (exchange_ != nullptr) return exchange_->Post(step);
  context_->gate.Submit(&done_);
  return absl::OkStatus();
}

void BucketPublisher::Cancel() {
  if (exchange_ != nullptr) exchange_->Cancel();
}

void BucketPublisher::OnExchangeDone(transport::Exchange*, Step,
                                     const absl::Status& status) {
  if (!status.ok()) {
    context_->observer->OnOperationFailed(status);
    return;
  }
  payload_sent_ += payload_per_exchange_;
  context_->observer->OnBucketPublished(bucket_);
}

}  // namespace ballast::collective
