// The state of one version, copied while training goes on: a chunk that was
// not yet copied is copied before a step changes it (I18).
//
//   live ──▶ copying ──▶ done      by the reader, in order, or by an update
//
// Whoever comes first copies; an update that finds the reader at its chunk
// waits for the end of that one copy (a chunk: at most a few 100 KiB). So a
// version is complete after one step at the latest, and memory is one copy.
//
// Threading: Begin and Abandon on the control thread, Begin while nothing is
// updated; CopyNext on one thread at a time; BeforeUpdate on pool threads.
// Ownership: borrows plan, state and weights, and the image until it is
// complete or abandoned.
#ifndef SERVER_SNAPSHOT_CAPTURE_H_
#define SERVER_SNAPSHOT_CAPTURE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "server/optimizer/shard_state.h"
#include "server/optimizer/update_guard.h"
#include "server/snapshot/shard_plan.h"

namespace ballast::snapshot {

class Capture final : public optimizer::UpdateGuard {
 public:
  Capture(const ShardPlan* plan, optimizer::ShardState* state,
          std::span<const std::byte> weights);

  // The state is at rest at the version that is to be kept.
  void Begin(std::span<std::byte> image);
  // Copies up to so many chunks that are still live.
  void CopyNext(int64_t max_chunks);
  bool is_complete() const {
    return chunks_left_.load(std::memory_order_acquire) == 0;
  }
  // Nothing touches the image after this.
  void Abandon();

  // Bytes that updates copied, since the start: what a snapshot cost steps.
  uint64_t bytes_by_updates() const { return bytes_by_updates_.load(); }

  // optimizer::UpdateGuard
  void BeforeUpdate(int64_t chunk) override;

 private:
  enum : uint8_t { kDone, kLive, kCopying };

  // False if the chunk was not live.
  bool Copy(int64_t chunk);

  const ShardPlan* const plan_;
  optimizer::ShardState* const state_;
  const std::span<const std::byte> weights_;
  const int64_t num_chunks_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;  // by chunk
  std::atomic<int64_t> chunks_left_{0};
  std::atomic<uint64_t> bytes_by_updates_{0};
  std::span<std::byte> image_;
  int64_t next_ = 0;  // of CopyNext
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_CAPTURE_H_
