#include "server/snapshot/capture.h"

#include <sched.h>

#include <cstring>

namespace ballast::snapshot {

Capture::Capture(const ShardPlan* plan, optimizer::ShardState* state,
                 std::span<const std::byte> weights)
    : plan_(plan),
      state_(state),
      weights_(weights),
      num_chunks_(plan->num_chunks()),
      states_(std::make_unique<std::atomic<uint8_t>[]>(num_chunks_)) {}

void Capture::Begin(std::span<std::byte> image) {
  image_ = image;
  next_ = 0;
  chunks_left_.store(num_chunks_);
  // The pool's hand-over of a task makes this visible to its thread.
  for (int64_t c = 0; c < num_chunks_; ++c) states_[c].store(kLive);
}

void Capture::CopyNext(int64_t max_chunks) {
  for (; max_chunks > 0 && next_ < num_chunks_; ++next_) {
    if (Copy(next_)) --max_chunks;
  }
}

void Capture::Abandon() {
  for (int64_t c = 0; c < num_chunks_; ++c) {
    uint8_t expected = kLive;
    if (states_[c].compare_exchange_strong(expected, kDone)) continue;
    // Somebody is in the middle of one copy.
    while (states_[c].load(std::memory_order_acquire) == kCopying) {
      sched_yield();
    }
  }
}

void Capture::BeforeUpdate(int64_t chunk) {
  if (states_[chunk].load(std::memory_order_acquire) == kDone) return;
  if (Copy(chunk)) {
    uint64_t bytes = 0;
    for (const PieceCopy& copy : plan_->copies(chunk)) {
      bytes += copy.num_elements * sizeof(float) *
                   (1 + plan_->content().num_moments) +
               (plan_->content().has_published ? copy.weight_bytes : 0);
    }
    bytes_by_updates_.fetch_add(bytes);
    return;
  }
  while (states_[chunk].load(std::memory_order_acquire) == kCopying) {
    sched_yield();
  }
}

bool Capture::Copy(int64_t chunk) {
  uint8_t expected = kLive;
  if (!states_[chunk].compare_exchange_strong(expected, kCopying)) {
    return false;
  }
  for (const PieceCopy& copy : plan_->copies(chunk)) {
    const auto keep = [&](Kind kind, const void* from, uint64_t bytes) {
      std::memcpy(image_.data() + copy.image_offset[static_cast<size_t>(kind)],
                  from, bytes);
    };
    const uint64_t bytes = copy.num_elements * sizeof(float);
    keep(Kind::kMaster, state_->master().data() + copy.state_offset, bytes);
    for (int i = 0; i < plan_->content().num_moments; ++i) {
      keep(i == 0 ? Kind::kM : Kind::kV,
           state_->moment(i).data() + copy.state_offset, bytes);
    }
    if (plan_->content().has_published) {
      keep(Kind::kPublished, weights_.data() + copy.weight_offset,
           copy.weight_bytes);
    }
  }
  states_[chunk].store(kDone, std::memory_order_release);
  chunks_left_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

}  // namespace ballast::snapshot
