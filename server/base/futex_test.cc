#include "server/base/futex.h"

#include <thread>

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

TEST(FutexTest, WakesASleeper) {
  for (const FutexScope scope : {FutexScope::kPrivate, FutexScope::kShared}) {
    std::atomic<uint32_t> word{0};
    std::thread sleeper([&] {
      while (word.load(std::memory_order_acquire) == 0) {
        FutexWait(&word, 0, absl::InfiniteDuration(), scope);
      }
    });
    word.store(1, std::memory_order_release);
    FutexWake(&word, 1, scope);
    sleeper.join();
  }
}

TEST(FutexTest, ReturnsAtOnceForAnotherValueAndForNoTime) {
  std::atomic<uint32_t> word{5};
  FutexWait(&word, 4, absl::InfiniteDuration(), FutexScope::kPrivate);
  FutexWait(&word, 5, absl::ZeroDuration(), FutexScope::kPrivate);
  FutexWait(&word, 5, -absl::InfiniteDuration(), FutexScope::kPrivate);
}

}  // namespace
}  // namespace ballast::base
