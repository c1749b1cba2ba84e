#include "server/base/sim_executor.h"

#include <memory>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

// Two processes that send each other messages; returns the order of events.
std::string Play(uint64_t seed, uint64_t* hash) {
  SimExecutor world(seed);
  SimProcess a(&world, "a");
  SimProcess b(&world, "b");
  std::string order;
  for (int i = 0; i < 8; ++i) {
    a.Post([&] { order += world.running(); });
    b.PostAfter(absl::Microseconds(5), [&] { order += 'b'; });
  }
  EXPECT_TRUE(world.RunUntilIdle());
  *hash = world.trace_hash();
  return order;
}

TEST(SimExecutorTest, OneSeedIsOneRun) {
  uint64_t first_hash, second_hash;
  const std::string first = Play(3, &first_hash);
  EXPECT_EQ(Play(3, &second_hash), first);
  EXPECT_EQ(first_hash, second_hash);
}

TEST(SimExecutorTest, SeedsDiffer) {
  std::set<std::string> orders;
  std::set<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    uint64_t hash;
    orders.insert(Play(seed, &hash));
    hashes.insert(hash);
  }
  EXPECT_GT(orders.size(), 10u);
  EXPECT_EQ(hashes.size(), 20u);
}

TEST(SimExecutorTest, OneExecutorKeepsTheOrderOfPosts) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimExecutor world(seed);
    SimProcess process(&world, "p");
    std::string order;
    for (char c = 'a'; c <= 'z'; ++c) process.Post([&, c] { order += c; });
    world.RunUntilIdle();
    EXPECT_EQ(order, "abcdefghijklmnopqrstuvwxyz");
  }
}

TEST(SimExecutorTest, TimeIsVirtualAndTimersCancel) {
  SimExecutor world(1, {.max_jitter = absl::ZeroDuration()});
  const absl::Time start = world.Now();
  absl::Time ran_at;
  world.PostAfter(absl::Hours(5), [&] { ran_at = world.Now(); });
  const TimerId cancelled =
      world.PostAfter(absl::Hours(1), [] { FAIL() << "cancelled"; });
  world.Cancel(cancelled);
  world.RunUntil(start + absl::Hours(2));
  EXPECT_EQ(world.Now(), start + absl::Hours(2));
  EXPECT_TRUE(world.RunUntilIdle());
  EXPECT_EQ(ran_at, start + absl::Hours(5));
  EXPECT_FALSE(world.Step());
}

TEST(SimExecutorTest, AKilledProcessRunsNothingMore) {
  SimExecutor world(1);
  auto process = std::make_unique<SimProcess>(&world, "p");
  int count = 0;
  process->Post([&] {
    ++count;
    process.reset();  // dies inside its own function
  });
  process->Post([&] { ++count; });
  process->PostAfter(absl::Seconds(1), [&] { ++count; });
  EXPECT_TRUE(world.RunUntilIdle());
  EXPECT_EQ(count, 1);
}

TEST(SimExecutorTest, APausedProcessCatchesUp) {
  SimExecutor world(1);
  SimProcess process(&world, "p");
  int count = 0;
  process.PostAfter(absl::Seconds(1), [&] { ++count; });
  process.Pause();
  world.RunFor(absl::Seconds(10));
  EXPECT_TRUE(world.RunUntilIdle()) << "paused events do not count";
  EXPECT_EQ(count, 0);
  const absl::Time before = world.Now();
  process.Resume();
  EXPECT_TRUE(world.RunUntilIdle());
  EXPECT_EQ(count, 1);
  EXPECT_EQ(world.Now(), before) << "time does not run backwards";
}

TEST(SimExecutorTest, NoticesAnEndlessRun) {
  SimExecutor world(1);
  absl::AnyInvocable<void()> again = [&] { world.Post([&] { again(); }); };
  again();
  EXPECT_FALSE(world.RunUntilIdle(1000));
}

TEST(SimExecutorTest, NotesAreInTheTrace) {
  SimExecutor a(1);
  SimExecutor b(1);
  EXPECT_EQ(a.trace_hash(), b.trace_hash());
  a.Note("frame 1");
  EXPECT_NE(a.trace_hash(), b.trace_hash());
  b.Note("frame 1");
  EXPECT_EQ(a.trace_hash(), b.trace_hash());
}

}  // namespace
}  // namespace ballast::base
