#include "server/collective/coded_publisher.h"

#include <utility>

#include "server/base/status_macros.h"

namespace ballast::collective {

int64_t CodedPublisher::WindowBytes(const Context& context, BucketId bucket) {
  int64_t bytes = 0;
  for (const layout::Shard& shard : context.bucket(bucket).shards) {
    bytes += PlanSlice(shard, context.weight_codecs).bytes;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<CodedPublisher>> CodedPublisher::Create(
    Context* context, BucketId bucket, std::span<std::byte> window) {
  auto publisher =
      std::unique_ptr<CodedPublisher>(new CodedPublisher(context, bucket));
  RETURN_IF_ERROR(publisher->PrepareExchange(window));
  publisher->MakeTasks();
  return publisher;
}

CodedPublisher::CodedPublisher(Context* context, BucketId bucket)
    : context_(context), bucket_(context->bucket(bucket)) {}

absl::Status CodedPublisher::PrepareExchange(std::span<std::byte> window) {
  for (const layout::Shard& shard : bucket_.shards) {
    slices_.push_back(PlanSlice(shard, context_->weight_codecs));
    bytes_.push_back(window.first(slices_.back().bytes));
    window = window.subspan(slices_.back().bytes);
  }
  const int self = context_->parts.node.value();
  transport::ExchangeSpec spec = context_->Spec(kPublishPhase, bucket_.id);
  for (const layout::Shard& shard : bucket_.shards) {
    const int peer = shard.owner.value();
    if (peer == self) continue;
    if (!bytes_[self].empty()) {
      spec.sends.push_back({shard.owner, bytes_[self]});
      payload_per_exchange_ += slices_[self].payload;
    }
    if (!bytes_[peer].empty()) {
      spec.receives.push_back({shard.owner, bytes_[peer]});
    }
  }
  ASSIGN_OR_RETURN(exchange_, context_->parts.transport->Prepare(spec, this));
  return absl::OkStatus();
}

void CodedPublisher::MakeTasks() {
  const size_t self = context_->parts.node.value();
  size_t num_encode = slices_[self].chunks.size();
  size_t num_decode = 0;
  for (const CodedSlice& slice : slices_) num_decode += slice.chunks.size();
  num_decode -= num_encode;
  encode_tasks_.reserve(num_encode);
  encode_errors_.resize(num_encode);
  decode_tasks_.reserve(num_decode);
  for (size_t owner = 0; owner < slices_.size(); ++owner) {
    std::byte* const slice = bytes_[owner].data();
    for (const std::vector<CodedRun>& chunk : slices_[owner].chunks) {
      const std::span<const CodedRun> runs = chunk;
      if (owner == self) {
        ErrorSums* const errors = &encode_errors_[encode_tasks_.size()];
        encode_tasks_.emplace_back(
            &context_->gate,
            [this, runs, slice, errors](int thread) {
              EncodeChunk(thread, runs, slice, errors);
            },
            [this] { OnEncoded(); });
      } else {
        decode_tasks_.emplace_back(
            &context_->gate,
            [this, runs, slice](int thread) {
              for (const CodedRun& coded : runs) {
                DecodeRun(thread, coded, slice);
              }
            },
            [this] { OnDecoded(); });
      }
    }
  }
}

absl::Status CodedPublisher::Start(Step step) {
  step_ = step;
  if (encode_tasks_.empty()) return exchange_->Post(step);
  num_left_ = encode_tasks_.size();
  for (ChunkTask& task : encode_tasks_) context_->gate.Submit(&task);
  return absl::OkStatus();
}

void CodedPublisher::OnEncoded() {
  if (--num_left_ > 0) return;
  errors_ = {};
  for (const ErrorSums& errors : encode_errors_) errors_.Add(errors);
  const absl::Status status = exchange_->Post(step_);
  if (!status.ok()) context_->observer->OnOperationFailed(status);
}

void CodedPublisher::OnExchangeDone(transport::Exchange*, Step,
                                    const absl::Status& status) {
  if (!status.ok()) {
    context_->observer->OnOperationFailed(status);
    return;
  }
  payload_sent_ += payload_per_exchange_;
  num_left_ = decode_tasks_.size();
  if (num_left_ == 0) {  // this node owns all of the bucket
    context_->observer->OnBucketPublished(bucket_.id);
    return;
  }
  for (ChunkTask& task : decode_tasks_) context_->gate.Submit(&task);
}

void CodedPublisher::OnDecoded() {
  if (--num_left_ > 0) return;
  context_->observer->OnBucketPublished(bucket_.id);
}

void CodedPublisher::EncodeChunk(int thread, std::span<const CodedRun> runs,
                                 std::byte* slice, ErrorSums* errors) {
  *errors = {};
  const Parts& parts = context_->parts;
  for (const CodedRun& coded : runs) {
    const float* const master = parts.master.data() + coded.piece->state_offset;
    // After the encodings of the nodes' gradients.
    const Run run =
        context_->RunOf(coded, step_, parts.layout->topology().num_nodes);
    coded.codec->Encode(run, master, slice + coded.offset);
    errors->Add(Sample(*coded.codec, run, master));
    DecodeRun(thread, coded, slice);
  }
}

void CodedPublisher::DecodeRun(int thread, const CodedRun& coded,
                               const std::byte* slice) {
  const layout::Piece& piece = *coded.piece;
  std::byte* const weights = context_->WeightsOf(piece);
  float* const decoded = context_->threads[thread].scratch.data();
  coded.codec->Decode(piece.size(), slice + coded.offset, decoded);
  context_->parts.kernels->cast(decoded, context_->dtype(piece), piece.size(),
                                weights);
}

}  // namespace ballast::collective
