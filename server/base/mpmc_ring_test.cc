#include "server/base/mpmc_ring.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

TEST(MpmcRingTest, IsFirstInFirstOutAndBounded) {
  int values[5];
  MpmcRing<int> ring(3);
  ASSERT_EQ(ring.capacity(), 4u);
  EXPECT_EQ(ring.TryPop(), nullptr);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(ring.TryPush(&values[i]));
    EXPECT_FALSE(ring.TryPush(&values[4]));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(ring.TryPop(), &values[i]);
    EXPECT_EQ(ring.TryPop(), nullptr);
  }
}

// I22: every entry comes out once, with what its producer wrote.
TEST(MpmcRingTest, HandsEveryEntryOverOnce) {
  constexpr int kThreads = 3;
  constexpr int kPerThread = 2000;
  struct Entry {
    int written = 0;
    int taken = 0;
  };
  std::vector<Entry> entries(kThreads * kPerThread);
  MpmcRing<Entry> ring(64);
  std::atomic<int> num_taken{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPerThread; ++i) {
        Entry& entry = entries[t * kPerThread + i];
        entry.written = i + 1;
        while (!ring.TryPush(&entry)) std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      while (num_taken.load() < kThreads * kPerThread) {
        if (Entry* entry = ring.TryPop()) {
          entry->taken += entry->written > 0 ? 1 : 1000;
          num_taken.fetch_add(1);
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Entry& entry : entries) ASSERT_EQ(entry.taken, 1);
}

}  // namespace
}  // namespace ballast::base
