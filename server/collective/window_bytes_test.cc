// What a job is admitted with for its windows is what its collective allocates.
#include <cstdint>

#include "gtest/gtest.h"
#include "server/collective/collective.h"
#include "server/collective/collective_rig.h"
#include "server/collective/parts.h"

namespace ballast::collective {
namespace {

constexpr const char* kPolicies[] = {
    "exact",
    "zeropp",
    "delta4",
    "weights.codec=int8",
    "gradients.codec=int4 max_relative_error=0.1",
    "gradients.codec=int4 gradients.error_feedback=true",
};

// As a daemon knows them before there is a job.
Parts Known(const Parts& all) {
  Parts known;
  known.layout = all.layout;
  known.node = all.node;
  known.plan = all.plan;
  known.pool = all.pool;
  known.buckets_in_flight = all.buckets_in_flight;
  known.batch_bytes = all.batch_bytes;
  return known;
}

TEST(WindowBytesTest, AreWhatCreateAllocates) {
  for (const char* policy : kPolicies) {
    for (const int nodes : {1, 2, 3, 4}) {
      Rig rig({.nodes = nodes, .workers = 2, .exchange = policy});
      uint64_t expected = 0;
      for (int n = 0; n < nodes; ++n) {
        expected += Collective::WindowBytes(Known(rig.PartsOf(n)));
      }
      const uint64_t before = rig.device().private_bytes_in_use();
      rig.CreateAll(Generation(1));
      EXPECT_EQ(rig.device().private_bytes_in_use() - before, expected)
          << policy << " on " << nodes << " nodes";
      EXPECT_EQ(expected > 0, nodes > 1) << policy;
    }
  }
}

TEST(WindowBytesTest, GrowWithWhatMayBeOnItsWay) {
  Rig rig({.nodes = 2, .workers = 1, .exchange = "zeropp"});
  Parts one = Known(rig.PartsOf(0));
  one.buckets_in_flight = 1;
  Parts two = one;
  two.buckets_in_flight = 2;
  EXPECT_GT(Collective::WindowBytes(two), Collective::WindowBytes(one));
}

}  // namespace
}  // namespace ballast::collective
