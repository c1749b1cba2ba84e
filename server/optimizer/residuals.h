// What encoding took from this node's gradients and owes to the next step
// (error feedback, kernels/FORMAT.md 10): fp32, two versions of every element,
// of all owners' slices. Which version counts is no state of its own: it is
// the parity of the optimizer step that is committed with the scalars, so that
// one record moves both. A skipped, aborted or repeated step reads the same
// version again and overwrites the other.
//
//   updates applied   0         1         2
//   reads             [0] ────▶ [1] ────▶ [0]
//   writes            [1]       [0]       [1]
//
// One shared buffer of the device, which can outlive the process; version 1,
// native little-endian, every part from a page boundary:
//
//   0      ResidualsHeader (residuals.cc)
//   4096   [0], [1]         fp32[elements] each: the fp32 scratch of all
//                           buckets, one after the other (Piece::bucket_offset)
//
// Threading: arrays are handed to pool tasks, which keep to their own pieces;
// everything else on the control thread.
#ifndef SERVER_OPTIMIZER_RESIDUALS_H_
#define SERVER_OPTIMIZER_RESIDUALS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/layout/layout.h"

namespace ballast::optimizer {

class Residuals {
 public:
  static constexpr uint32_t kVersion = 1;  // of the format
  static constexpr char kWhat[] = "gradient residuals";

  // All zero, or where the device adopts the memory what an earlier life left:
  // DataLoss if that is of another layout or node, FailedPrecondition if of
  // another version. Unimplemented on a device that the host cannot address.
  static absl::StatusOr<std::unique_ptr<Residuals>> Create(
      device::Device* device, const layout::Layout& layout, NodeRank node);

  // Of memory that Create made.
  static uint64_t SizeBytes(const layout::Layout& layout);

  // Which version is read after so many applied updates; the other is written.
  static int VersionAt(int64_t optimizer_step) {
    return static_cast<int>(optimizer_step & 1);
  }

  std::span<float> version(int index) { return versions_[index]; }
  // Where a bucket's elements begin, in either version.
  int64_t OffsetOf(BucketId bucket) const { return offsets_[bucket.value()]; }
  uint64_t size_bytes() const { return buffer_->size_bytes(); }

 private:
  Residuals(std::unique_ptr<device::SharedBuffer> buffer,
            const layout::Layout& layout);

  const std::unique_ptr<device::SharedBuffer> buffer_;
  std::array<std::span<float>, 2> versions_;
  std::vector<int64_t> offsets_;  // by bucket
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_RESIDUALS_H_
