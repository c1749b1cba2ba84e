#include "server/optimizer/scalar_slots.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "proto/control_block.h"
#include "server/base/status_matchers.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;

Scalars Example(int64_t step) {
  Scalars scalars;
  scalars.generation = Generation(3);
  scalars.step = Step(step);
  scalars.optimizer_step = step - 1;
  scalars.groups.resize(2);
  scalars.groups[0].lr = 1.0 / static_cast<double>(step);
  scalars.groups[1].nesterov = true;
  scalars.groups[1].momentum = 0.9;
  scalars.groups[1].lr_decay = 0.25;
  scalars.groups[1].initial_accumulator_value = 3;
  scalars.cursors = {"cursor " + std::to_string(step), std::string(300, 'x'),
                     ""};
  return scalars;
}

class ScalarSlotsTest : public testing::Test {
 protected:
  static constexpr int kCursors = 3;
  std::vector<std::byte> memory_{ScalarSlots::SizeBytes(kCursors)};
  ScalarSlots slots_{memory_, kCursors};
};

TEST_F(ScalarSlotsTest, ZeroMemoryHoldsNothing) {
  EXPECT_FALSE(slots_.Read().has_value());
}

TEST_F(ScalarSlotsTest, ReadsTheLastWrite) {
  for (int64_t step = 1; step <= 5; ++step) {
    ASSERT_THAT(slots_.Write(Example(step)), IsOk());
    EXPECT_EQ(slots_.Read(), Example(step));
    EXPECT_EQ(ScalarSlots(memory_, kCursors).Read(), Example(step));
  }
}

// Death at any byte of a write, whatever reached the memory first: I20.
TEST_F(ScalarSlotsTest, ATornWriteNeverLosesBoth) {
  ASSERT_THAT(slots_.Write(Example(7)), IsOk());
  ASSERT_THAT(slots_.Write(Example(8)), IsOk());
  const std::vector<std::byte> before = memory_;
  ASSERT_THAT(slots_.Write(Example(9)), IsOk());
  const std::vector<std::byte> after = memory_;
  size_t begin = 0;
  while (before[begin] == after[begin]) ++begin;
  size_t end = before.size();
  while (before[end - 1] == after[end - 1]) --end;
  for (size_t cut = begin; cut <= end; ++cut) {
    for (const bool forwards : {true, false}) {
      const auto& head = forwards ? after : before;
      const auto& tail = forwards ? before : after;
      std::copy(head.begin() + begin, head.begin() + cut,
                memory_.begin() + begin);
      std::copy(tail.begin() + cut, tail.begin() + end, memory_.begin() + cut);
      const std::optional<Scalars> read = slots_.Read();
      ASSERT_TRUE(read.has_value()) << cut;
      ASSERT_TRUE(*read == Example(8) || *read == Example(9)) << cut;
    }
  }
}

TEST_F(ScalarSlotsTest, ADamagedSlotFallsBackToTheOther) {
  ASSERT_THAT(slots_.Write(Example(1)), IsOk());
  ASSERT_THAT(slots_.Write(Example(2)), IsOk());
  memory_[memory_.size() / 2 + 60] ^= std::byte{1};  // slot 1: step 2
  EXPECT_EQ(slots_.Read(), Example(1));
  memory_[60] ^= std::byte{1};
  EXPECT_FALSE(slots_.Read().has_value());
  ASSERT_THAT(slots_.Write(Example(3)), IsOk());
  EXPECT_EQ(slots_.Read(), Example(3));
}

TEST_F(ScalarSlotsTest, RefusesWhatIsBeyondTheBounds) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ASSERT_THAT(slots_.Write(Example(1)), IsOk());
  Scalars scalars = Example(2);
  scalars.cursors.resize(4);
  EXPECT_THAT(slots_.Write(scalars), StatusIs(kInvalid, "4 cursors"));
  scalars = Example(2);
  scalars.cursors[0].resize(proto::kMaxCursorBytes + 1);
  EXPECT_THAT(slots_.Write(scalars), StatusIs(kInvalid, "65537 bytes"));
  scalars = Example(2);
  scalars.groups.resize(proto::kMaxParamGroups + 1);
  EXPECT_THAT(slots_.Write(scalars), StatusIs(kInvalid, "257 param groups"));
  EXPECT_EQ(slots_.Read(), Example(1));
  scalars.groups.resize(proto::kMaxParamGroups);
  for (std::string& cursor : scalars.cursors) {
    cursor.assign(proto::kMaxCursorBytes, 'c');
  }
  EXPECT_THAT(slots_.Write(scalars), IsOk());  // the largest fits
  EXPECT_EQ(slots_.Read(), scalars);
}

}  // namespace
}  // namespace ballast::optimizer
