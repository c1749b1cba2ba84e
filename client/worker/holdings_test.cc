#include "client/worker/holdings.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control_block.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using Stored = std::vector<std::pair<int, uint64_t>>;

class HoldingsTest : public testing::Test {
 protected:
  Stored Want(int tensor) {
    Stored stored;
    holdings_.Want(tensor,
                   [&](int u, uint64_t r) { stored.emplace_back(u, r); });
    return stored;
  }
  Stored GiveBack(int tensor) {
    Stored stored;
    holdings_.GiveBack(tensor,
                       [&](int u, uint64_t r) { stored.emplace_back(u, r); });
    return stored;
  }

  Holdings holdings_ =
      *Holdings::Create({{0, 1}, {1, 1}, {-1, -1}, {2, 2}}, 3, 1);
};

TEST_F(HoldingsTest, AUnitIsWantedAsLongAsATensorIs) {
  EXPECT_EQ(Want(0), (Stored{{0, 1}, {1, 1}}));
  EXPECT_EQ(Want(0), Stored());
  EXPECT_EQ(Want(1), Stored()) << "its unit is wanted already";
  EXPECT_TRUE(holdings_.is_wanted(1));
  EXPECT_EQ(GiveBack(0), (Stored{{0, 2}}));
  EXPECT_EQ(GiveBack(0), Stored());
  EXPECT_EQ(GiveBack(1), (Stored{{1, 2}}));
  EXPECT_EQ(Want(1), (Stored{{1, 3}}));
  EXPECT_EQ(holdings_.request(1), 3u);
}

TEST_F(HoldingsTest, ATensorIsHeldWhenAllItsUnitsAnswerItsRequests) {  // I1
  using proto::HeldState;
  uint64_t words[3] = {};
  const auto held = [&](int unit) { return words[unit]; };
  EXPECT_FALSE(holdings_.IsHeld(0, 5, held)) << "nobody wants it";
  Want(0);
  words[0] = proto::HeldWord(1, HeldState::kHeld, 5);
  EXPECT_FALSE(holdings_.IsHeld(0, 5, held));
  words[1] = proto::HeldWord(1, HeldState::kHeld, 4);
  EXPECT_FALSE(holdings_.IsHeld(0, 5, held)) << "an older version";
  words[1] = proto::HeldWord(1, HeldState::kHeld, 5);
  EXPECT_TRUE(holdings_.IsHeld(0, 5, held));
  EXPECT_FALSE(holdings_.IsRefused(0, held));
  GiveBack(0);
  Want(0);
  EXPECT_FALSE(holdings_.IsHeld(0, 5, held)) << "of the request before";
  words[1] = proto::HeldWord(3, HeldState::kRefused, 0);
  EXPECT_TRUE(holdings_.IsRefused(0, held));
  // What is frozen has no version.
  Want(3);
  words[2] = proto::HeldWord(1, HeldState::kHeld, 0);
  EXPECT_TRUE(holdings_.IsHeld(3, 5, held));
}

TEST_F(HoldingsTest, ATensorWithoutElementsNeedsNothing) {
  EXPECT_EQ(Want(2), Stored());
  EXPECT_TRUE(holdings_.is_wanted(2));
  EXPECT_EQ(GiveBack(2), Stored());
}

TEST_F(HoldingsTest, TheLastUnitsAreFrozen) {
  EXPECT_FALSE(holdings_.is_frozen(1));
  EXPECT_TRUE(holdings_.is_frozen(2));
  EXPECT_TRUE(holdings_.are_gathered());
  EXPECT_FALSE(Holdings().are_gathered());
}

// I26, the other way round: what a daemon says is checked too.
TEST_F(HoldingsTest, RefusesWhatDoesNotFit) {
  constexpr auto kLoss = absl::StatusCode::kDataLoss;
  for (const UnitRange range :
       {UnitRange{-1, 0}, {-2, -2}, {0, 3}, {2, 1}, {1 << 30, 1 << 30}}) {
    EXPECT_THAT(Holdings::Create({range}, 3, 0), base::StatusIs(kLoss));
  }
  EXPECT_THAT(Holdings::Create({}, -1, 0), base::StatusIs(kLoss));
  EXPECT_THAT(Holdings::Create({}, 1 << 30, 0), base::StatusIs(kLoss));
  EXPECT_THAT(Holdings::Create({}, 3, 4), base::StatusIs(kLoss));
  EXPECT_THAT(Holdings::Create({{5, 5}}, 0, 0), base::IsOk())
      << "weights are resident";
}

}  // namespace
}  // namespace ballast::worker
