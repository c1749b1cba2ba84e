// Linux futexes on 32-bit words: across processes (kShared, for words in
// shared memory) or inside one.
//
// Threading: thread-safe.
#ifndef SERVER_BASE_FUTEX_H_
#define SERVER_BASE_FUTEX_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace ballast::base {

enum class FutexScope { kPrivate, kShared };

// Sleeps while `*word == expected`, at most `timeout`. Returns on a wake, on
// a different value, on time-out and on signals alike: check and call again.
void FutexWait(const std::atomic<uint32_t>* word, uint32_t expected,
               absl::Duration timeout, FutexScope scope);

// Wakes up to `count` sleepers.
void FutexWake(std::atomic<uint32_t>* word, int count, FutexScope scope);

}  // namespace ballast::base

#endif  // SERVER_BASE_FUTEX_H_
