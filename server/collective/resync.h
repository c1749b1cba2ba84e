// Once in a while the published bits of a bucket, as its owners have them, to
// every node, which compares them with its own: in delta mode, where nothing
// else would ever put right what all checksums have missed. Other bits are
// counted, and the owner's are written.
//
// A function of the step: bucket b in the steps s with s + b a multiple of
// `resync_every_steps`, so that no step carries all of them.
//
// Threading: control thread; chunks are tasks of the pool, made once.
#ifndef SERVER_COLLECTIVE_RESYNC_H_
#define SERVER_COLLECTIVE_RESYNC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/batch_pipeline.h"
#include "server/collective/bucket_operation.h"
#include "server/collective/context.h"
#include "server/collective/published_chunks.h"
#include "server/layout/layout.h"

namespace ballast::collective {

class Resync final : public BucketOperation {
 public:
  static bool IsDue(const layout::ExchangePolicy& policy, BucketId bucket,
                    Step step);
  // What the other owners' shards take.
  static int64_t WindowBytes(const Context& context, BucketId bucket);

  // `window` is in use from Start to the report, or to Cancel and an idle gate.
  static absl::StatusOr<std::unique_ptr<Resync>> Create(
      Context* context, BucketId bucket, std::span<std::byte> window);

  BatchPipeline* pipeline() override { return &pipeline_; }
  void AddErrors(PathErrors*) const override {}
  double residual_norm2() const override { return 0; }

 private:
  Resync(Context* context, BucketId bucket);

  absl::Status Prepare(std::span<std::byte> window);
  // On pool threads.
  absl::Status CheckOwn(const ChunkId& id);
  absl::Status Compare(const ChunkId& id, const layout::Shard& shard,
                       const std::byte* received);

  Context* const context_;
  const layout::Bucket& bucket_;
  PublishedChunks* const published_;
  BatchPipeline pipeline_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_RESYNC_H_
