#include "client/worker/pauses.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/random.h"

namespace ballast::worker {
namespace {

// What worker `seed` waits, one try after the other.
std::vector<absl::Duration> PausesOf(uint64_t seed, int count) {
  base::SeededRandom random(seed);
  Pauses pauses(&random);
  std::vector<absl::Duration> result;
  for (int i = 0; i < count; ++i) result.push_back(pauses.Next());
  return result;
}

TEST(PausesTest, GrowToABound) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    absl::Duration longest = absl::Milliseconds(50);
    for (const absl::Duration pause : PausesOf(seed, 50)) {
      EXPECT_GE(pause, longest / 2);
      EXPECT_LE(pause, longest);
      longest = std::min(2 * longest, absl::Seconds(2));
    }
    EXPECT_EQ(longest, absl::Seconds(2));
  }
}

// Those of one daemon, which all lose it at the same moment, do not all come
// back at one: neither at first nor after many tries.
TEST(PausesTest, NoTwoWorkersComeInStep) {
  constexpr int kWorkers = 64;
  constexpr int kTries = 12;
  std::vector<absl::Duration> at(kWorkers);
  for (int i = 1; i <= kTries; ++i) {
    std::set<absl::Duration> moments;
    for (int w = 0; w < kWorkers; ++w) {
      at[w] += PausesOf(w, i).back();
      moments.insert(at[w]);
    }
    EXPECT_GT(moments.size(), kWorkers * 9 / 10) << "after try " << i;
    // Spread over a good part of the last pause.
    EXPECT_GT(*moments.rbegin() - *moments.begin(),
              0.3 * std::min(absl::Milliseconds(50) * (1 << (i - 1)),
                             absl::Seconds(2)));
  }
}

}  // namespace
}  // namespace ballast::worker
