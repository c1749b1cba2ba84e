// The processor's own prefetching ends at each page (4 KiB), and kernels that
// pass over a block twice or wait for a chain of additions do not look far
// enough ahead by themselves: a page ahead is asked for by hand.
#ifndef KERNELS_HOST_PREFETCH_H_
#define KERNELS_HOST_PREFETCH_H_

#include <cstdint>

namespace ballast::kernels::host {

inline constexpr int64_t kPrefetchBytes = 4096;

// For `kBytes` of data at `p` about to be read; an address behind the end of
// the array does no harm.
template <int kBytes>
[[gnu::always_inline]] inline void PrefetchAhead(const void* p) {
  const auto* const bytes = static_cast<const char*>(p) + kPrefetchBytes;
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(bytes + i);
}

}  // namespace ballast::kernels::host

#endif  // KERNELS_HOST_PREFETCH_H_
