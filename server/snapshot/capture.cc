#include "server/snapshot/capture.h"

#include <sched.h>

#include <cstring>
#include <utility>

namespace ballast::snapshot {

Capture::Capture(const ShardPlan* plan, optimizer::ShardState* state,
                 WeightPlaces weights, optimizer::Residuals* residuals,
                 const EncodedWeights* encoded)
    : plan_(plan),
      state_(state),
      weights_(std::move(weights)),
      residuals_(residuals),
      encoded_(encoded),
      num_units_(plan->num_chunks() + plan->num_residual_buckets()),
      states_(std::make_unique<std::atomic<uint8_t>[]>(num_units_)) {}

void Capture::Begin(std::span<std::byte> image, int64_t optimizer_step) {
  image_ = image;
  next_ = 0;
  residual_version_ = optimizer::Residuals::VersionAt(optimizer_step);
  is_encoded_ = encoded_ != nullptr && encoded_->is_encoded();
  units_left_.store(num_units_);
  // The pool's hand-over of a task makes this visible to its thread.
  for (int64_t u = 0; u < num_units_; ++u) states_[u].store(kLive);
}

void Capture::CopyNext(int64_t max_units) {
  for (; max_units > 0 && next_ < num_units_; ++next_) {
    if (Copy(next_)) --max_units;
  }
}

void Capture::Abandon() {
  for (int64_t u = 0; u < num_units_; ++u) {
    uint8_t expected = kLive;
    if (states_[u].compare_exchange_strong(expected, kDone)) continue;
    // Somebody is in the middle of one copy.
    while (states_[u].load(std::memory_order_acquire) == kCopying) {
      sched_yield();
    }
  }
}

void Capture::BeforeUpdate(int64_t chunk) {
  if (states_[chunk].load(std::memory_order_acquire) == kDone) return;
  CopyOrWait(chunk, ChunkBytes(chunk));
}

void Capture::BeforeResiduals(int version, BucketId bucket) {
  if (bucket.value() >= plan_->num_residual_buckets()) return;
  const int64_t unit = plan_->num_chunks() + bucket.value();
  if (states_[unit].load(std::memory_order_acquire) == kDone ||
      version != residual_version_) {
    return;
  }
  uint64_t bytes = 0;
  for (const ResidualCopy& copy : plan_->residuals(bucket)) {
    bytes += copy.num_elements * sizeof(float);
  }
  CopyOrWait(unit, bytes);
}

void Capture::CopyOrWait(int64_t unit, uint64_t bytes) {
  if (Copy(unit)) {
    bytes_by_updates_.fetch_add(bytes);
    return;
  }
  while (states_[unit].load(std::memory_order_acquire) == kCopying) {
    sched_yield();
  }
}

uint64_t Capture::ChunkBytes(int64_t chunk) const {
  uint64_t bytes = 0;
  for (const PieceCopy& copy : plan_->copies(chunk)) {
    bytes +=
        copy.num_elements * sizeof(float) * (1 + plan_->content().num_moments) +
        (plan_->content().has_published ? copy.weight_bytes : 0);
  }
  return bytes;
}

bool Capture::Copy(int64_t unit) {
  uint8_t expected = kLive;
  if (!states_[unit].compare_exchange_strong(expected, kCopying)) {
    return false;
  }
  if (unit < plan_->num_chunks()) {
    CopyChunk(unit);
  } else {
    CopyResiduals(BucketId(static_cast<int32_t>(unit - plan_->num_chunks())));
  }
  states_[unit].store(kDone, std::memory_order_release);
  units_left_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void Capture::CopyChunk(int64_t chunk) {
  const std::span<const PieceCopy> copies = plan_->copies(chunk);
  for (size_t i = 0; i < copies.size(); ++i) {
    const PieceCopy& copy = copies[i];
    const auto keep = [&](Kind kind, const void* from, uint64_t bytes) {
      std::memcpy(image_.data() + copy.image_offset[static_cast<size_t>(kind)],
                  from, bytes);
    };
    // First, as it borrows the place of the masters.
    if (plan_->content().has_published) CopyPublished(chunk, i, copy);
    const uint64_t bytes = copy.num_elements * sizeof(float);
    keep(Kind::kMaster, state_->master().data() + copy.state_offset, bytes);
    for (int m = 0; m < plan_->content().num_moments; ++m) {
      keep(m == 0 ? Kind::kM : Kind::kV,
           state_->moment(m).data() + copy.state_offset, bytes);
    }
  }
}

void Capture::CopyPublished(int64_t chunk, size_t piece,
                            const PieceCopy& copy) {
  const auto place = [&](Kind kind) {
    return image_.data() + copy.image_offset[static_cast<size_t>(kind)];
  };
  const std::span into(place(Kind::kPublished), copy.weight_bytes);
  if (is_encoded_) {
    // The image begins with the masters: they are aligned in it.
    auto* const scratch = reinterpret_cast<float*>(place(Kind::kMaster));
    encoded_->Decode(chunk, piece, {scratch, size_t(copy.num_elements)}, into);
    return;
  }
  const auto from = weights_.Find(copy.weight_offset, copy.weight_bytes);
  std::memcpy(into.data(), from.data(), from.size());
}

void Capture::CopyResiduals(BucketId bucket) {
  const float* const from = residuals_->version(residual_version_).data() +
                            residuals_->OffsetOf(bucket);
  for (const ResidualCopy& copy : plan_->residuals(bucket)) {
    std::memcpy(image_.data() + copy.image_offset, from + copy.bucket_offset,
                copy.num_elements * sizeof(float));
  }
}

}  // namespace ballast::snapshot
