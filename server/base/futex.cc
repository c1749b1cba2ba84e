#include "server/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace ballast::base {
namespace {

int Operation(int operation, FutexScope scope) {
  return scope == FutexScope::kPrivate ? operation | FUTEX_PRIVATE_FLAG
                                       : operation;
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected,
               absl::Duration timeout, FutexScope scope) {
  if (timeout <= absl::ZeroDuration()) return;
  const bool is_bounded = timeout != absl::InfiniteDuration();
  timespec limit{};
  if (is_bounded) limit = absl::ToTimespec(timeout);
  // Every outcome is the caller's to check: see the header.
  syscall(SYS_futex, word, Operation(FUTEX_WAIT, scope), expected,
          is_bounded ? &limit : nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int count, FutexScope scope) {
  syscall(SYS_futex, word, Operation(FUTEX_WAKE, scope), count, nullptr,
          nullptr, 0);
}

}  // namespace ballast::base
