#include "server/keeper/descriptor_limit.h"

#include <algorithm>

namespace ballast::keeper {
namespace {

// Streams, loop, signals, sockets, and what a message brings before it is
// refused.
constexpr rlim_t kOwn = 32;

}  // namespace

rlim_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return 0;
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : soft;
}

int HoldableUnder(rlim_t limit, int wanted) {
  const rlim_t left = limit > kOwn ? limit - kOwn : 0;
  return static_cast<int>(std::min(left, static_cast<rlim_t>(wanted)));
}

}  // namespace ballast::keeper
