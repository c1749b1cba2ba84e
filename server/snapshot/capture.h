// The state of one version, copied while training goes on: a chunk that was
// not yet copied is copied before a step changes it (I18).
//
//   live ──▶ copying ──▶ done      by the reader, in order, or by an update
//
// Residuals (error feedback) are two versions, of which a step overwrites the
// one that no longer counts: the version that is kept lives for a step longer
// than the chunks, and is copied bucket by bucket.
//
// Whoever comes first copies; an update that finds the reader at its chunk
// waits for the end of that one copy (a chunk: at most a few 100 KiB; a bucket
// of residuals). So a version is complete after two steps at the latest, and
// memory is one copy.
//
// Threading: Begin and Abandon on the control thread, Begin while nothing is
// updated; CopyNext on one thread at a time; BeforeUpdate on pool threads.
// Ownership: borrows plan, state, weights, residuals and encoded weights, and
// the image until it is complete or abandoned.
#ifndef SERVER_SNAPSHOT_CAPTURE_H_
#define SERVER_SNAPSHOT_CAPTURE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "server/base/ids.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/update_guard.h"
#include "server/snapshot/encoded_weights.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/weight_places.h"

namespace ballast::snapshot {

class Capture final : public optimizer::UpdateGuard {
 public:
  // `residuals`: where the plan has them. `encoded`: null where published
  // weights are never kept so.
  Capture(const ShardPlan* plan, optimizer::ShardState* state,
          WeightPlaces weights, optimizer::Residuals* residuals = nullptr,
          const EncodedWeights* encoded = nullptr);

  // The state is at rest at the version that is to be kept, after so many
  // applied updates.
  void Begin(std::span<std::byte> image, int64_t optimizer_step);
  // Copies up to so many chunks and buckets that are still live.
  void CopyNext(int64_t max_units);
  bool is_complete() const {
    return units_left_.load(std::memory_order_acquire) == 0;
  }
  // Nothing touches the image after this.
  void Abandon();

  // Bytes that updates copied, since the start: what a snapshot cost steps.
  uint64_t bytes_by_updates() const { return bytes_by_updates_.load(); }

  // optimizer::UpdateGuard
  void BeforeUpdate(int64_t chunk) override;
  void BeforeResiduals(int version, BucketId bucket) override;

 private:
  enum : uint8_t { kDone, kLive, kCopying };

  // Of chunk or bucket `unit`: false if it was not live.
  bool Copy(int64_t unit);
  void CopyOrWait(int64_t unit, uint64_t bytes);
  void CopyChunk(int64_t chunk);
  void CopyPublished(int64_t chunk, size_t piece, const PieceCopy& copy);
  void CopyResiduals(BucketId bucket);
  uint64_t ChunkBytes(int64_t chunk) const;

  const ShardPlan* const plan_;
  optimizer::ShardState* const state_;
  const WeightPlaces weights_;
  optimizer::Residuals* const residuals_;
  const EncodedWeights* const encoded_;
  const int64_t num_units_;                               // chunks, buckets
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;  // by unit
  std::atomic<int64_t> units_left_{0};
  int residual_version_ = 0;  // that is kept
  bool is_encoded_ = false;   // likewise
  std::atomic<uint64_t> bytes_by_updates_{0};
  std::span<std::byte> image_;
  int64_t next_ = 0;  // of CopyNext
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_CAPTURE_H_
