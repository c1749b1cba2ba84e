// This node's part of the weights of a job that keeps them nowhere in full
// (secondary_partition=none): its shards of every unit (layout/gather_units.h),
// as they go to whoever gathers them, and how parts are read back.
//
//   raw     elements in their own type: initial and stored values, frozen
//           tensors, and every version where the policy does not quantize
//           weights; the optimizer casts into it
//   coded   where it does: the masters encoded once per version (FORMAT.md),
//           from the first update on; after it the raw ones are dropped
//
// Every reader, the owner's node too, gets the weights from the same bytes
// (I25). Which form a version has follows from the commits, which all see.
//
// The parts are shared memory, though no worker maps them: a device that keeps
// its buffers gives the next life what was served (Restore).
//
// Threading: control thread, but for EncodeChunk and DecodeChunk, which pool
// tasks call on disjoint chunks, and DecodeOwn.
// Ownership: keeps its memory; borrows masters, layout, units and plan.
#ifndef SERVER_COLLECTIVE_OWNED_WEIGHTS_H_
#define SERVER_COLLECTIVE_OWNED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/collective/coded_slice.h"
#include "server/collective/context.h"
#include "server/collective/error_sums.h"
#include "server/collective/parts.h"
#include "server/device/device.h"
#include "server/layout/gather_units.h"

namespace ballast::collective {

class OwnedWeights {
 public:
  // Of `parts`: layout, node, job_key, kernels, pool, device, plan and master.
  // ResourceExhausted if there is no memory.
  static absl::StatusOr<std::unique_ptr<OwnedWeights>> Create(
      const Parts& parts, const layout::GatherUnits* units);

  // Of a job that an earlier life left: `is_coded`, an update of its has been
  // committed, so that versions of buckets are encoded.
  void Restore(bool is_coded);

  const layout::GatherUnits& units() const { return *units_; }
  // This node's index in what there is of every owner.
  int self() const { return context_.self(); }
  NodeRank node() const { return context_.parts.node; }
  int num_nodes() const { return context_.topology().num_nodes; }
  // Whose part of owner `owner` this node gathers: in its partition group.
  NodeRank NodeOf(int owner) const { return context_.NodeOf(NodeRank(owner)); }

  // For the optimizer: the raw shards of the buckets, and by bucket how many
  // bytes after its place in the weight segment each lies (optimizer::Parts).
  std::span<std::byte> raw_buckets();
  std::vector<int64_t> shifts() const;

  // This node's part of a unit as it is; empty once it was dropped.
  std::span<std::byte> Raw(int unit);
  // Takes its parts out of a whole weight segment.
  void CopyFrom(std::span<const std::byte> segment);
  // Once nobody reads them any more, nor can after a restart: an encoded
  // version is recorded; and no snapshot does, which has each chunk before its
  // update: the version is whole. Idempotent.
  void DropRaw();

  // Whether versions of buckets are encoded, and whether the one that is shown
  // now is (not the initial one).
  bool codes() const { return !slices_.empty(); }
  bool is_coded(int unit) const { return codes() && is_coded_[unit]; }
  void SetCoded(BucketId bucket);
  bool are_all_coded() const {  // all buckets
    return codes() && num_coded_ == slices_.size();
  }

  uint64_t size_bytes() const;  // of memory, now

  // What `owner`'s part of a unit takes on its way, and how much of it is
  // payload by the policy's formula.
  uint64_t PartBytes(int unit, int owner) const;
  uint64_t PartPayload(int unit, int owner) const;
  // This node's, as the others get it.
  std::span<const std::byte> Served(int unit);

  size_t num_chunks(BucketId bucket, int owner) const;
  std::span<const CodedRun> OwnRuns(BucketId bucket, size_t chunk) const;
  // Pool threads: an own chunk of the masters as they are now, `errors` by run;
  // a chunk of an encoded part into the weight segment.
  void EncodeChunk(Step step, BucketId bucket, size_t chunk,
                   std::span<ErrorSums> errors);
  void DecodeChunk(int thread, BucketId bucket, int owner, size_t chunk,
                   const std::byte* part, std::byte* segment) const;
  // Any thread, while the chunk is not encoded anew: what everybody reads of
  // one run of own chunk `chunk`, which counts over all buckets. `scratch`: of
  // its elements.
  void DecodeOwn(int64_t chunk, size_t run, std::span<float> scratch,
                 std::span<std::byte> into) const;

 private:
  struct OwnChunk {
    const CodedChunk* coded;
    uint64_t slice_offset;  // bytes, in coded_
  };
  OwnedWeights(const Parts& parts, const layout::GatherUnits* units)
      : units_(units), context_(parts, Generation(), nullptr) {}
  absl::Status Allocate();
  absl::Status PlanSlices();
  void DecodeRun(const CodedRun& coded, const std::byte* slice, float* decoded,
                 std::byte* into) const;

  const layout::GatherUnits* const units_;
  Context context_;
  std::vector<uint64_t> raw_offsets_;  // by unit; frozen ones in their own
  std::unique_ptr<device::SharedBuffer> raw_;     // null if empty or dropped
  std::unique_ptr<device::SharedBuffer> frozen_;  // null if empty
  std::vector<std::vector<CodedSlice>> slices_;   // by bucket, owner
  std::vector<uint64_t> coded_offsets_;           // by bucket
  std::vector<OwnChunk> own_chunks_;
  std::unique_ptr<device::SharedBuffer> coded_;
  std::vector<bool> is_coded_;  // by unit
  size_t num_coded_ = 0;        // of them
  std::unique_ptr<device::PrivateBuffer> scratch_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_OWNED_WEIGHTS_H_
