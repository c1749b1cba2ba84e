#include "server/session/idle_connections.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/sim_executor.h"

namespace ballast::session {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class IdleConnectionsTest : public testing::Test {
 protected:
  IdleConnectionsTest()
      : executor_(1),
        idle_({.max_total = 4, .max_per_uid = 3, .timeout = absl::Seconds(30)},
              &executor_,
              [this](const std::string& key, const absl::Status& why) {
                evicted_.push_back(key);
                codes_.push_back(why.code());
              }) {}

  base::SimExecutor executor_;
  std::vector<std::string> evicted_;
  std::vector<absl::StatusCode> codes_;
  IdleConnections idle_;
};

TEST_F(IdleConnectionsTest, EachHasItsTime) {
  idle_.Add("a", 1);
  executor_.RunFor(absl::Seconds(20));
  idle_.Add("b", 1);
  executor_.RunFor(absl::Seconds(20));
  EXPECT_THAT(evicted_, ElementsAre("a"));
  EXPECT_EQ(codes_[0], absl::StatusCode::kDeadlineExceeded);
  executor_.RunFor(absl::Seconds(20));
  EXPECT_THAT(evicted_, ElementsAre("a", "b"));
  EXPECT_EQ(idle_.size(), 0);
}

TEST_F(IdleConnectionsTest, OneThatAttachesIsLeftAlone) {
  idle_.Add("a", 1);
  idle_.Remove("a");
  idle_.Remove("never was there");
  executor_.RunFor(absl::Minutes(5));
  EXPECT_THAT(evicted_, IsEmpty());
}

TEST_F(IdleConnectionsTest, TheOldestOfTheUidMakesRoom) {  // I26
  for (const char* key : {"a", "b", "c", "d"}) idle_.Add(key, 1);
  EXPECT_THAT(evicted_, ElementsAre("a"));
  EXPECT_EQ(codes_[0], absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(idle_.size(), 3);
}

TEST_F(IdleConnectionsTest, TheGreediestUidMakesRoomForOthers) {  // I26
  idle_.Add("other", 2);
  for (const char* key : {"a", "b", "c"}) idle_.Add(key, 1);
  EXPECT_THAT(evicted_, IsEmpty());
  idle_.Add("newcomer", 3);
  EXPECT_THAT(evicted_, ElementsAre("a"));
}

TEST_F(IdleConnectionsTest, AFloodNeverEvictsTheNewest) {  // I26
  for (uint32_t i = 0; i < 1000; ++i) {
    const std::string key = absl::StrCat("k", i);
    idle_.Add(key, i % 7);
    ASSERT_TRUE(evicted_.empty() || evicted_.back() != key);
    ASSERT_LE(idle_.size(), 4);
  }
}

}  // namespace
}  // namespace ballast::session
