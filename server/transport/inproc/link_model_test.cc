#include "server/transport/inproc/link_model.h"

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"

namespace ballast::transport {
namespace {

TEST(LinkModelTest, CutsBothDirectionsOfOnePair) {
  base::SimExecutor world(1);
  LinkModel links(&world, 1, LinkFaults());
  int heals = 0;
  links.OnHeal([&] { ++heals; });
  links.Partition(NodeRank(2), NodeRank(1));
  EXPECT_TRUE(links.IsCut(NodeRank(1), NodeRank(2)));
  EXPECT_TRUE(links.IsCut(NodeRank(2), NodeRank(1)));
  EXPECT_FALSE(links.IsCut(NodeRank(1), NodeRank(3)));
  links.Heal(NodeRank(1), NodeRank(2));
  EXPECT_FALSE(links.IsCut(NodeRank(1), NodeRank(2)));
  links.Partition(NodeRank(0), NodeRank(1));
  links.HealAll();
  EXPECT_FALSE(links.IsCut(NodeRank(0), NodeRank(1)));
  EXPECT_EQ(heals, 2);
}

TEST(LinkModelTest, DelaysAreWithinBoundsAndGrowWithBytes) {
  base::SimExecutor world(1);
  LinkModel links(&world, 1,
                  {.min_delay = absl::Microseconds(10),
                   .max_delay = absl::Microseconds(20),
                   .bytes_per_second = 1e6});
  for (int i = 0; i < 1000; ++i) {
    const absl::Duration delay = links.DrawDelay(1000);
    EXPECT_GE(delay, absl::Microseconds(1010));
    EXPECT_LE(delay, absl::Microseconds(1020));
  }
}

TEST(LinkModelTest, ASharedLinkCarriesOnePartAfterAnother) {
  base::SimExecutor world(1);
  LinkModel links(&world, 1,
                  {.min_delay = absl::Microseconds(10),
                   .max_delay = absl::Microseconds(10),
                   .bytes_per_second = 1e6});
  const auto delay = [&links](int from, int to) {
    return links.DrawDelay(NodeRank(from), NodeRank(to), 1000);
  };
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1010));
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1010));  // each alone
  links.ShareRate(&world);
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1010));
  EXPECT_EQ(delay(0, 1), absl::Microseconds(2010));
  EXPECT_EQ(delay(1, 0), absl::Microseconds(1010));  // the other way is free
  world.RunFor(absl::Microseconds(1500));
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1510));
  world.RunFor(absl::Milliseconds(9));
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1010));
  world.RunFor(absl::Milliseconds(9));
  links.ShareInterfaces(&world);
  EXPECT_EQ(delay(0, 1), absl::Microseconds(1010));
  EXPECT_EQ(delay(0, 2), absl::Microseconds(2010));  // behind the other
  EXPECT_EQ(delay(1, 2), absl::Microseconds(1010));
}

TEST(LinkModelTest, FaultsFollowTheirProbability) {
  base::SimExecutor world(1);
  LinkModel links(&world, 1, {.loss = 0.25});
  int losses = 0;
  for (int i = 0; i < 10'000; ++i) {
    losses += links.DrawLoss();
    EXPECT_FALSE(links.DrawDuplicate());
  }
  EXPECT_NEAR(losses, 2500, 200);
}

TEST(LinkModelTest, CountsBytesByDirection) {
  base::SimExecutor world(1);
  LinkModel links(&world, 1, LinkFaults());
  links.CountBytes(NodeRank(0), NodeRank(1), 5);
  links.CountBytes(NodeRank(0), NodeRank(2), 7);
  EXPECT_EQ(links.link_bytes(NodeRank(0), NodeRank(1)), 5u);
  EXPECT_EQ(links.link_bytes(NodeRank(1), NodeRank(0)), 0u);
  EXPECT_EQ(links.sent_bytes(NodeRank(0)), 12u);
}

}  // namespace
}  // namespace ballast::transport
