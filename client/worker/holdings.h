// Which tensors this worker has gathered, and the requests that this takes of
// units (proto/control_block.h): pure bookkeeping. A unit is wanted as long as
// any gathered tensor has bytes in it.
//
// Threading: thread-compatible.
#ifndef CLIENT_WORKER_HOLDINGS_H_
#define CLIENT_WORKER_HOLDINGS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace ballast::worker {

// Units [first, last] of one tensor; first = -1: in none.
struct UnitRange {
  int32_t first = -1;
  int32_t last = -1;
};

class Holdings {
 public:
  Holdings() = default;  // weights are resident

  // `ranges` come from the daemon: DataLoss if they are not inside
  // [0, num_units). The last `num_frozen` units have no version.
  static absl::StatusOr<Holdings> Create(std::vector<UnitRange> ranges,
                                         int num_units, int num_frozen);

  bool are_gathered() const { return num_units() > 0; }
  int num_units() const { return static_cast<int>(units_.size()); }
  bool is_frozen(int unit) const { return unit >= num_units() - num_frozen_; }
  const UnitRange& range(int tensor) const { return ranges_[tensor]; }
  bool is_wanted(int tensor) const { return is_wanted_[tensor]; }

  // Calls `store` for every unit whose request changes by it. A tensor that is
  // gathered (given back) already changes nothing.
  using Store = absl::FunctionRef<void(int unit, uint64_t request)>;
  void Want(int tensor, Store store);
  void GiveBack(int tensor, Store store);

  // The request of a unit; odd, it is wanted.
  uint64_t request(int unit) const { return units_[unit].request; }

  // What the daemon says of a unit (proto::HeldWord). Whether all units of a
  // tensor that is wanted are there with the weights of `version`; whether one
  // of them was refused.
  using Look = absl::FunctionRef<uint64_t(int unit)>;
  bool IsHeld(int tensor, int64_t version, Look held) const;
  bool IsRefused(int tensor, Look held) const;

 private:
  struct Unit {
    uint64_t request = 0;
    int tensors = 0;
  };

  std::vector<UnitRange> ranges_;
  std::vector<bool> is_wanted_;
  std::vector<Unit> units_;
  int num_frozen_ = 0;
};

}  // namespace ballast::worker

#endif  // CLIENT_WORKER_HOLDINGS_H_
