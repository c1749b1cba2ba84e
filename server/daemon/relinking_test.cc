#include "server/daemon/relinking.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast::daemon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(RelinkingTest, AFurtherLossDoesNotMoveTheDeadline) {  // I23
  Relinking relinking(absl::Minutes(5));
  EXPECT_FALSE(relinking.is_active());
  EXPECT_EQ(relinking.Describe(kStart), "");
  EXPECT_TRUE(
      relinking.Begin(absl::UnavailableError("node 1 is silent"), kStart));
  EXPECT_FALSE(relinking.Begin(absl::UnavailableError("node 2 is silent"),
                               kStart + absl::Minutes(4)));
  EXPECT_EQ(relinking.deadline(), kStart + absl::Minutes(5));
  EXPECT_THAT(
      relinking.Describe(kStart + absl::Seconds(12)),
      AllOf(HasSubstr("12s ago (node 1 is silent)"), HasSubstr("4m48s more")));
  relinking.End();
  EXPECT_FALSE(relinking.is_active());
  EXPECT_TRUE(relinking.Begin(absl::UnavailableError("node 2 is silent"),
                              kStart + absl::Minutes(9)));
  EXPECT_EQ(relinking.deadline(), kStart + absl::Minutes(14));
}

TEST(RelinkingTest, TheEndNamesTheFirstLossTheKeyAndWhoIsMissing) {
  Relinking relinking(absl::Seconds(90));
  relinking.Begin(absl::UnavailableError("node 1 is silent"), kStart);
  const absl::Status end = relinking.Expired("node 1 of 2 has not come");
  EXPECT_TRUE(absl::IsUnavailable(end));
  EXPECT_EQ(end.message(),
            "node 1 is silent; the nodes did not meet again within "
            "transport.relink_timeout = 1m30s: node 1 of 2 has not come");
}

TEST(RelinkingTest, ZeroMeansNever) {
  EXPECT_FALSE(Relinking(absl::ZeroDuration()).may_begin());
  EXPECT_TRUE(Relinking(absl::Seconds(1)).may_begin());
}

}  // namespace
}  // namespace ballast::daemon
