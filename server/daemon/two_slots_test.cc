#include "server/daemon/two_slots.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ballast::daemon {
namespace {

struct Memory {
  alignas(16) std::byte bytes[2 * 128] = {};
};

std::optional<std::string> ReadBack(Memory memory) {
  return TwoSlots(memory.bytes).Read();
}

TEST(TwoSlotsTest, TheLastTextIsRead) {
  Memory memory;
  EXPECT_FALSE(ReadBack(memory).has_value());
  TwoSlots slots(memory.bytes);
  for (const char* text : {"one", "two", "three", ""}) {
    slots.Write(text);
    EXPECT_EQ(ReadBack(memory), text);
  }
  slots.Write(std::string(slots.max_bytes(), 'x'));
  EXPECT_EQ(ReadBack(memory), std::string(slots.max_bytes(), 'x'));
}

TEST(TwoSlotsTest, TheNextLifeWritesOn) {
  Memory memory;
  TwoSlots(memory.bytes).Write("one");
  TwoSlots next(memory.bytes);
  EXPECT_EQ(next.Read(), "one");
  next.Write("two");
  EXPECT_EQ(ReadBack(memory), "two");
}

// I20; and whatever bytes there are.
TEST(TwoSlotsTest, AWriteCutAnywhereLeavesTheTextBefore) {
  Memory memory;
  TwoSlots slots(memory.bytes);
  slots.Write("one");
  slots.Write("two");
  Memory cut = memory;
  slots.Write("three");
  int olds = 0;
  for (size_t i = 0; i < sizeof(cut.bytes); ++i) {
    if (cut.bytes[i] == memory.bytes[i]) continue;
    olds += ReadBack(cut) == "two";
    cut.bytes[i] = memory.bytes[i];
  }
  EXPECT_EQ(ReadBack(cut), "three");
  EXPECT_GT(olds, 8);
}

TEST(TwoSlotsTest, DamageCountsAsNothing) {
  Memory memory;
  TwoSlots(memory.bytes).Write("one");
  for (size_t i = 128; i < 128 + 24 + 3; ++i) {
    Memory bad = memory;
    bad.bytes[i] ^= std::byte{0x80};
    EXPECT_FALSE(ReadBack(bad).has_value()) << i;
  }
}

}  // namespace
}  // namespace ballast::daemon
