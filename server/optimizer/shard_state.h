// Memory of the owned shards: fp32 arrays indexed by Piece::state_offset, and
// the scalars that belong to them (scalar_slots.h: a torn write never loses
// both of two copies). One shared buffer of the device, which can outlive the
// process; version 2, native little-endian, every part from a page boundary:
//
//   0      StateHeader (shard_state.cc)
//   4096   scalar slots
//   ...    master, moments, gradient    fp32[elements] each
//
// Threading: arrays are handed to pool tasks, which keep to their own pieces;
// everything else on the control thread.
#ifndef SERVER_OPTIMIZER_SHARD_STATE_H_
#define SERVER_OPTIMIZER_SHARD_STATE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/hyper_parameters.h"
#include "server/base/ids.h"
#include "server/device/device.h"
#include "server/layout/layout.h"
#include "server/optimizer/scalars.h"  // IWYU pragma: export

namespace ballast::optimizer {

class ShardState {
 public:
  static constexpr uint32_t kVersion = 2;  // of the format
  static constexpr char kWhat[] = "optimizer states";

  // `kind` and `has_momentum` decide how many moments there are. All zero, or
  // where the device adopts the memory what an earlier life left: DataLoss if
  // that is of another layout or optimizer, FailedPrecondition if of another
  // version.
  static absl::StatusOr<std::unique_ptr<ShardState>> Create(
      device::Device* device, const layout::Layout& layout, NodeRank node,
      kernels::OptimizerKind kind, bool has_momentum);
  virtual ~ShardState() = default;

  virtual kernels::OptimizerKind kind() const = 0;
  virtual int num_moments() const = 0;
  virtual std::span<float> master() = 0;
  virtual std::span<float> moment(int index) = 0;
  virtual std::span<float> gradient() = 0;  // reduced: the mean over all ranks
  virtual uint64_t size_bytes() const = 0;

  virtual const Scalars& scalars() const = 0;
  // InvalidArgument, and nothing changed, beyond the bounds of the control
  // block: groups, cursors (at most one per local rank), bytes of a cursor.
  virtual absl::Status Commit(Scalars scalars) = 0;
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_SHARD_STATE_H_
