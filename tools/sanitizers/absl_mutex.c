/* Shows the thread sanitizer what the distribution's absl::Mutex and CondVar
 * do: they are built without it, so it takes all that gRPC hands from thread
 * to thread under them for races. Loaded before the libraries (LD_PRELOAD), as
 * their callers reach them through the dynamic linker.
 *
 * The names are those of Debian's Abseil; if another has others, nothing is
 * replaced and the reports are back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>

/* Of the sanitizer; absent in programs without it, like the test's shell. */
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);

static void Acquire(void* mutex) {
  if (__tsan_acquire != 0) __tsan_acquire(mutex);
}
static void Release(void* mutex) {
  if (__tsan_release != 0) __tsan_release(mutex);
}

/* absl::Time and absl::Duration, as the ABI passes them: in two registers. */
struct Span {
  int64_t high;
  int64_t low;
};
typedef void LockFn(void* mutex);
typedef bool TryLockFn(void* mutex);
typedef void WaitFn(void* condition, void* mutex);
typedef bool TimedWaitFn(void* condition, void* mutex, struct Span limit);

/* The library's own function of the name that this one has. */
#define NEXT(type)                                               \
  static type* cached;                                           \
  type* next = __atomic_load_n(&cached, __ATOMIC_ACQUIRE);       \
  if (next == 0) {                                               \
    next = (type*)dlsym(RTLD_NEXT, __func__);                    \
    __atomic_store_n(&cached, next, __ATOMIC_RELEASE);           \
  }

#define LOCK(name)         \
  void name(void* mutex);  \
  void name(void* mutex) { \
    NEXT(LockFn)           \
    next(mutex);           \
    Acquire(mutex);        \
  }
#define UNLOCK(name)       \
  void name(void* mutex);  \
  void name(void* mutex) { \
    NEXT(LockFn)           \
    Release(mutex);        \
    next(mutex);           \
  }
#define TIMED_WAIT(name)                                             \
  bool name(void* condition, void* mutex, struct Span limit);        \
  bool name(void* condition, void* mutex, struct Span limit) {       \
    NEXT(TimedWaitFn)                                                \
    Release(mutex);                                                  \
    const bool has_expired = next(condition, mutex, limit);          \
    Acquire(mutex);                                                  \
    return has_expired;                                              \
  }

LOCK(_ZN4absl7debian35Mutex4LockEv)
LOCK(_ZN4absl7debian35Mutex10ReaderLockEv)
UNLOCK(_ZN4absl7debian35Mutex6UnlockEv)
UNLOCK(_ZN4absl7debian35Mutex12ReaderUnlockEv)
TIMED_WAIT(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE)
TIMED_WAIT(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE)

bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex);
bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex) {
  NEXT(TryLockFn)
  const bool is_locked = next(mutex);
  if (is_locked) Acquire(mutex);
  return is_locked;
}

void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex);
void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex) {
  NEXT(WaitFn)
  Release(mutex);
  next(condition, mutex);
  Acquire(mutex);
}
