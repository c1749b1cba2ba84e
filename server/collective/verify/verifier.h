// Reads what this node publishes once a step, before the node votes on it
// (delta mode, several nodes): a chunk whose bits are not the ones that were
// written is healed before the step commits, and so before any node builds
// upon it.
//
//   a bucket is to be reduced ─▶ its chunks, own and others', a few at a time
//                    ─▶ sound, or healed (ChunkWatch) ─┐
//   its sums are reduced ──────────────────────────────┴─▶ on_reduced
//
// A bucket is reduced once the version before is published here, and its next
// one is published after the commit: nobody writes its chunks meanwhile, and
// whoever is asked for their bits has that version or is about to. Workers
// have pushed it, so most have read it for the last time.
//
// Beside the exchange: at most half of the pool's threads are busy with it,
// and what the exchange submits waits for no more than a chunk on each.
//
// Threading: control thread; Reader::Run on pool threads.
// Ownership: one per collective (generation); the context outlives it. Nothing
// is allocated after the constructor unless something is damaged.
// Errors: what cannot be healed goes to the context's observer.
#ifndef SERVER_COLLECTIVE_VERIFY_VERIFIER_H_
#define SERVER_COLLECTIVE_VERIFY_VERIFIER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/collective/context.h"
#include "server/collective/parts.h"
#include "server/collective/published_chunks.h"

namespace ballast::collective {

class Verifier {
 public:
  using OnReduced = absl::AnyInvocable<void(BucketId, const Reduced&)>;

  // `on_reduced` is not called from inside Start. Needs parts.published.
  Verifier(Context* context, OnReduced on_reduced);
  ~Verifier();

  // Of the version that is published. Once a step.
  void Start(BucketId bucket);
  // The bucket, which was started, is reduced: told now, or once it is
  // verified too.
  void Report(BucketId bucket, const Reduced& reduced);

 private:
  class Reader;  // of one chunk at a time

  struct OfBucket {
    size_t num_left = 0;  // chunks
    bool is_healed = false;
    std::optional<Reduced> reduced;
  };

  // The next chunk of the buckets that were started.
  std::optional<ChunkId> Next();
  void Submit();
  void OnRead(Reader* reader);
  void OnDamaged(const ChunkId& id, const absl::Status& why);
  void OnSound(BucketId bucket);
  absl::Status Read(const ChunkId& id) const;  // on a pool thread

  Context* const context_;
  PublishedChunks* const published_;
  OnReduced on_reduced_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<Reader*> idle_;
  std::vector<OfBucket> buckets_;
  std::vector<BucketId> started_;  // in order; from `next_bucket_` on unread
  size_t next_bucket_ = 0;
  int next_owner_ = 0;  // in it
  size_t next_index_ = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_VERIFY_VERIFIER_H_
