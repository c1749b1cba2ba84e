#include "server/base/failpoint.h"

#include <signal.h>

#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

int CountErrors(int hits) {
  int errors = 0;
  for (int i = 0; i < hits; ++i) {
    if (!BALLAST_FAILPOINT_STATUS("here").ok()) ++errors;
  }
  return errors;
}

TEST(FailpointTest, FiresAtTheNamedHitOnly) {
  ASSERT_THAT(ConfigureFailpoints("here=error@3;other=error", 1), IsOk());
  EXPECT_THAT(HitFailpoint("here"), IsOk());
  EXPECT_THAT(HitFailpoint("here"), IsOk());
  EXPECT_THAT(HitFailpoint("here"),
              StatusIs(absl::StatusCode::kUnavailable, "here"));
  EXPECT_THAT(HitFailpoint("here"), IsOk());
  EXPECT_FALSE(HitFailpoint("other").ok());
  EXPECT_THAT(HitFailpoint("nowhere"), IsOk());
}

TEST(FailpointTest, ProbabilityComesFromTheSeed) {
  ASSERT_THAT(ConfigureFailpoints("here=error%30", 7), IsOk());
  const int first = CountErrors(1000);
  ASSERT_THAT(ConfigureFailpoints("here=error%30", 7), IsOk());
  EXPECT_EQ(CountErrors(1000), first);
  EXPECT_NEAR(first, 300, 60);
}

TEST(FailpointDeathTest, Kills) {
  ASSERT_THAT(ConfigureFailpoints("here=kill", 1), IsOk());
  EXPECT_EXIT(BALLAST_FAILPOINT("here"), testing::KilledBySignal(SIGKILL), "");
  ASSERT_THAT(ConfigureFailpoints("", 1), IsOk());
}

TEST(FailpointTest, RefusesMalformedText) {
  for (const char* spec : {"x", "=kill", "a=b=c", "a=explode", "a=kill@0",
                           "a=kill@x", "a=error%101", "a=kill;a=kill"}) {
    EXPECT_THAT(ConfigureFailpoints(spec, 1),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << spec;
  }
}

TEST(FailpointTest, BreaksOnlyWhatIsSaid) {
  ASSERT_THAT(ConfigureFailpoints("here=break;there=error", 1), IsOk());
  EXPECT_TRUE(BALLAST_SABOTAGED("here"));
  EXPECT_FALSE(BALLAST_SABOTAGED("there"));
  EXPECT_FALSE(BALLAST_SABOTAGED("elsewhere"));
  EXPECT_THAT(BALLAST_FAILPOINT_STATUS("here"), IsOk());
  ASSERT_THAT(ConfigureFailpoints("", 1), IsOk());
}

TEST(FailpointTest, ADeathMayBeAnother) {
  std::string died;
  SetDeath([&died](std::string_view name) { died = std::string(name); });
  ASSERT_THAT(ConfigureFailpoints("here=kill@2", 1), IsOk());
  BALLAST_FAILPOINT("here");
  EXPECT_EQ(died, "");
  BALLAST_FAILPOINT("here");
  EXPECT_EQ(died, "here");
  SetDeath(nullptr);
  ASSERT_THAT(ConfigureFailpoints("", 1), IsOk());
}

}  // namespace
}  // namespace ballast::base
