// Which entry of a HWY_EXPORT table belongs to a target. The tables of a
// target are filled once (host.cc) and hold its functions themselves, so that
// no call is dispatched again and no global state chooses.
//
// Include behind hwy/highway.h.
#ifndef KERNELS_HOST_DISPATCH_H_
#define KERNELS_HOST_DISPATCH_H_

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

namespace ballast::kernels::host {

// `target` is one bit of hwy::SupportedTargets() & HWY_TARGETS.
inline size_t TableIndex(int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_DISPATCH_H_
