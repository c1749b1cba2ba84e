// The four hops of a bucket as resumable operations (DESIGN 5):
//
//   StartReduce   1 inside the node: canonical-tree sums over the local ranks
//                 2 between nodes: sums of each owner's slice to that owner,
//                   who finishes the tree and divides once -> state gradient
//   StartPublish  3 between nodes: each owner's new weights to every node
//                 4 into the node's published segment
//
// Buckets enter hop 2 in layout order, at most `buckets_in_flight` at a time,
// whatever the order of the calls; with one node hop 2 and 3 do not exist and
// the sums go straight into the state gradient. Where the plan quantizes, hop
// 2 carries encoded node sums and hop 3 encoded weights (coded_reducer.h,
// coded_publisher.h).
//
// Threading: control thread only; sums run in the compute pool. The observer
// is never called from inside a call. No allocation per bucket after Create.
// Ownership: scratch memory and prepared exchanges; borrows gradients, weights
// and the state gradient. Destroyed only after Cancel reported, or when
// nothing is in flight; inside a callback too.
// Errors: a failed exchange is reported once through OnFailed; after that, or
// after Cancel, no other call of the observer follows. Published weights that
// are found damaged (delta mode) are healed from other nodes first
// (chunk_keeper.h); DataLoss if none has their bits.
#ifndef SERVER_COLLECTIVE_COLLECTIVE_H_
#define SERVER_COLLECTIVE_COLLECTIVE_H_

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/error_sums.h"        // IWYU pragma: export
#include "server/collective/parts.h"             // IWYU pragma: export
#include "server/collective/published_chunks.h"  // IWYU pragma: export
#include "server/layout/exchange_plan.h"
#include "server/layout/metering.h"

namespace ballast::collective {

class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  virtual void OnReduced(BucketId bucket, const Reduced& reduced) = 0;
  virtual void OnPublished(BucketId bucket) = 0;
  virtual void OnBroadcast() = 0;
  virtual void OnCompared() = 0;
  virtual void OnFailed(absl::Status status) = 0;
};

// Of the weights that this node shows, in delta mode; zeros otherwise.
struct PublishedState {
  uint64_t digest = 0;        // of the version, if no bucket is on its way
  ChunkFaultCounts faults{};  // since the job's start
  HealCounts heals{};         // likewise
  uint64_t num_verified = 0;  // chunks read before votes, likewise
};

// Since Create; zeros without a clock.
struct ExchangeTimes {
  double exchange_seconds = 0;  // a bucket was on its way
  double wire_seconds = 0;      // something was posted to the transport
};

class Collective {
 public:
  // One per generation. InvalidArgument if the parts do not fit the layout;
  // ResourceExhausted if there is no memory for the windows.
  static absl::StatusOr<std::unique_ptr<Collective>> Create(
      const Parts& parts, Generation generation);
  virtual ~Collective() = default;

  // What Create allocates between nodes. Of the parts, layout, node, plan, pool
  // and the bounds are enough; without `halves` it is the most that may come.
  static uint64_t WindowBytes(const Parts& parts);

  // In delta mode OnReduced also says that the bucket's published chunks, of
  // the version before, were read and are sound (verify/verifier.h).
  virtual void StartReduce(BucketId bucket, Step step) = 0;
  virtual void StartPublish(BucketId bucket, Step step) = 0;

  // All weights (frozen ones too) from `root` to every node; while nothing is
  // being published. Each time another `step`.
  virtual void StartBroadcast(NodeRank root, Step step) = 0;

  // All published chunks against what their owners have, and the owners' bits
  // where they differ; then OnCompared. While nothing is being published, and
  // not before the last one reported. Without deltas there is nothing to do.
  virtual void StartComparison() = 0;

  // Drops everything in flight; `done` runs on the control thread once no
  // pool task and no transport touches the borrowed memory any more.
  virtual void Cancel(absl::AnyInvocable<void() &&> done) = 0;

  virtual ByteCounts byte_counts() const = 0;  // since Create

  virtual PublishedState published() const = 0;

  // Whose bits damaged chunks wait for, in words; empty if for nobody's.
  virtual std::string WaitingFor() const = 0;

  virtual ExchangeTimes times() const = 0;

  // From now on other codecs, on all nodes between the same two steps: weights
  // of the step that was reduced last, gradients of the next one. Nothing is
  // on its way. Prepares the exchanges of the tensors' buckets anew, in the
  // same windows. DataLoss if a change does not fit the plan.
  virtual absl::Status Revise(std::span<const layout::CodecChange> changes) = 0;

  // The step that was reduced last is committed, so many updates are applied:
  // what its gradients left over counts if there is one more, and is dropped
  // otherwise. Nothing is being reduced.
  virtual void OnCommitted(int64_t optimizer_step) = 0;
  // L2, of what this node's gradients of the last step left over, by the codecs
  // that were in force then. Nothing without error feedback, where this
  // collective encoded none of them, and if it is not finite.
  virtual std::optional<double> ResidualNorm() const = 0;

  // Tensors whose codec is wider than the policy's.
  virtual int num_wider(layout::Path path) const = 0;

  // Of what this node encoded for `step`, all of whose buckets were reduced or
  // published last: of the metered tensors whose turn it was
  // (layout::ExchangePlan::MeteredIn), none where nothing is quantized.
  virtual PathErrors Errors(layout::Path path, Step step) const = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_COLLECTIVE_H_
