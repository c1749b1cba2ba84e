// Two slots for the scalars of a shard's state, written in turn, each with a
// checksum, so that a write that is cut short leaves the other one readable.
// Byte format of one slot, version 2, native little-endian:
//
//   0    checksum        XXH3-64 of sequence, bytes and what follows
//   8    sequence        1, 2, …; the valid slot with the larger one counts
//   16   bytes           of what follows
//   24   generation, step, optimizer_step                        3 x int64
//   48   number of groups, number of cursors                     2 x uint32
//   56   groups          lr beta1 beta2 eps weight_decay momentum dampening
//                        nesterov (0 or 1) lr_decay
//                        initial_accumulator_value              10 x double
//   ...  cursors         uint32 length, then the bytes
//
// Threading: thread-compatible. The memory outlives the object.
#ifndef SERVER_OPTIMIZER_SCALAR_SLOTS_H_
#define SERVER_OPTIMIZER_SCALAR_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/optimizer/scalars.h"

namespace ballast::optimizer {

class ScalarSlots {
 public:
  // Bytes that both slots need for at most `max_cursors` cursors.
  static uint64_t SizeBytes(int max_cursors);

  // `memory` has SizeBytes(max_cursors), aligned to 8: zeros, or what an
  // earlier life wrote.
  ScalarSlots(std::span<std::byte> memory, int max_cursors);

  // The last complete write; none if there was none. Contents are checked:
  // any bytes are safe to read.
  std::optional<Scalars> Read() const;

  // InvalidArgument beyond the bounds; nothing is written then.
  absl::Status Write(const Scalars& scalars);

 private:
  struct Slot;
  Slot Parse(int index) const;
  void Serialize(const Scalars& scalars, uint64_t sequence);

  const std::span<std::byte> memory_;
  const int max_cursors_;
  std::string buffer_;  // sequence and all after it; reused
};

}  // namespace ballast::optimizer

#endif  // SERVER_OPTIMIZER_SCALAR_SLOTS_H_
