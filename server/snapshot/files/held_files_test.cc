#include "server/snapshot/files/held_files.h"

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

bool IsZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(
      bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(HeldFilesTest, HoldsNoMoreThanItMay) {
  HeldFiles files(10'000);
  ASSERT_THAT(files.CreateHeld("a", 6000), IsOk());
  EXPECT_THAT(files.CreateHeld("b", 4001),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "6000 of 10000 bytes for replicas are in use"));
  EXPECT_EQ(files.Find("b"), nullptr);
  ASSERT_THAT(files.CreateHeld("b", 4000), IsOk());
  EXPECT_EQ(files.bytes_in_use(), 10'000u);
  auto file = files.Create("c");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Reserve(1),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// I28: memory goes with the last user, not with the name.
TEST(HeldFilesTest, GivesMemoryBackWithItsLastUser) {
  HeldFiles files(10'000);
  ASSERT_THAT(files.MakeDirectories("set"), IsOk());
  std::shared_ptr<HeldFile> file = *files.CreateHeld("set/a", 6000);
  std::ranges::fill(file->bytes(), std::byte{7});
  ASSERT_THAT(files.RemoveAll("set"), IsOk());
  EXPECT_EQ(files.Find("set/a"), nullptr);
  EXPECT_EQ(files.bytes_in_use(), 6000u);
  EXPECT_EQ(file->bytes()[5999], std::byte{7});
  file.reset();
  EXPECT_EQ(files.bytes_in_use(), 0u);
  // I13: what comes next finds nothing of it.
  const auto next = files.CreateHeld("next", 6000);
  ASSERT_THAT(next, IsOk());
  EXPECT_TRUE(IsZero((*next)->bytes()));
}

// What `file` lies in: the same memory has the same inode.
ino_t InodeOf(const HeldFile& file) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(file.bytes().data());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %lu", &begin, &end,
                    &inode) == 3 &&
        begin <= address && address < end) {
      return inode;
    }
  }
  return 0;
}

constexpr uint64_t kLarge = 5'000'000;

TEST(HeldFilesTest, ALargeFileHasTheMemoryOfTheOneBefore) {  // I13
  HeldFiles files(20 << 20);
  std::shared_ptr<HeldFile> file = *files.CreateHeld("a", kLarge);
  EXPECT_EQ(file->size_bytes(), kLarge);
  EXPECT_EQ(files.bytes_in_use(), HeldBytesOf(kLarge));
  const ino_t inode = InodeOf(*file);
  EXPECT_NE(inode, 0);
  std::ranges::fill(file->bytes(), std::byte{7});
  ASSERT_THAT(files.RemoveAll("a"), IsOk());
  EXPECT_EQ(files.spare_bytes(), 0u);
  file.reset();
  EXPECT_EQ(files.bytes_in_use(), 0u);
  EXPECT_EQ(files.spare_bytes(), HeldBytesOf(kLarge));
  // Another large size finds memory of its own, nearly the same finds it.
  const auto other = files.CreateHeld("b", 2 * kLarge);
  ASSERT_THAT(other, IsOk());
  EXPECT_NE(InodeOf(**other), inode);
  const auto next = files.CreateHeld("c", kLarge + 100);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(InodeOf(**next), inode);
  EXPECT_EQ((*next)->size_bytes(), kLarge + 100);
  EXPECT_TRUE(IsZero((*next)->bytes()));
  EXPECT_EQ(files.spare_bytes(), 0u);
}

TEST(HeldFilesTest, WhatIsKeptMakesRoom) {
  HeldFiles files(20 << 20);
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_THAT(files.CreateHeld(name, kLarge), IsOk());
  }
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_THAT(files.RemoveAll(name), IsOk());
  }
  EXPECT_EQ(files.spare_bytes(), 3 * HeldBytesOf(kLarge));
  ASSERT_THAT(files.CreateHeld("d", 12 << 20), IsOk());
  EXPECT_EQ(files.spare_bytes(), HeldBytesOf(kLarge));
  EXPECT_THAT(files.CreateHeld("e", 9 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(files.CreateHeld("e", 8 << 20), IsOk());
  EXPECT_EQ(files.spare_bytes(), 0u);
}

bool IsMemoryMapped() {
  std::ifstream maps("/proc/self/maps");
  const std::string all((std::istreambuf_iterator<char>(maps)), {});
  return all.find("ballast:replica") != std::string::npos;
}

TEST(HeldFilesTest, NothingIsKeptWithoutIt) {  // I28
  std::shared_ptr<HeldFile> file;
  {
    HeldFiles files(20 << 20);
    file = *files.CreateHeld("a", kLarge);
  }
  EXPECT_TRUE(IsMemoryMapped());
  file.reset();
  EXPECT_FALSE(IsMemoryMapped());
}

TEST(HeldFilesTest, NothingIsKeptOnceNoMoreIsToCome) {
  HeldFiles files(20 << 20);
  for (const char* name : {"a", "b"}) {
    ASSERT_THAT(files.CreateHeld(name, kLarge), IsOk());
  }
  ASSERT_THAT(files.RemoveAll("a"), IsOk());
  EXPECT_EQ(files.spare_bytes(), HeldBytesOf(kLarge));
  files.Close();
  EXPECT_EQ(files.spare_bytes(), 0u);
  EXPECT_EQ(files.bytes_in_use(), HeldBytesOf(kLarge));
  ASSERT_THAT(files.RemoveAll("b"), IsOk());
  EXPECT_EQ(files.spare_bytes(), 0u);
  EXPECT_FALSE(IsMemoryMapped());
}

TEST(HeldFilesTest, OutlivesItsFileSystem) {
  std::shared_ptr<HeldFile> file;
  {
    HeldFiles files(1000);
    file = *files.CreateHeld("a", 1000);
  }
  std::ranges::fill(file->bytes(), std::byte{1});
  EXPECT_EQ(file->size_bytes(), 1000u);
}

TEST(HeldFilesTest, ASparseFileCountsWhatIsReserved) {
  HeldFiles files(300'000);
  const std::shared_ptr<HeldFile> file =
      *files.CreateHeld("a", uint64_t{1} << 30, /*is_sparse=*/true);
  EXPECT_EQ(files.bytes_in_use(), 0u);
  ASSERT_THAT(file->Reserve(1 << 20, 200'000), IsOk());
  file->bytes()[(1 << 20) + 199'999] = std::byte{3};
  EXPECT_EQ(files.bytes_in_use(), 200'000u);
  EXPECT_THAT(file->Reserve(0, 200'000),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(HeldFilesTest, LinksAFileOfAnother) {
  HeldFiles first(1000);
  HeldFiles second(0);
  const std::shared_ptr<HeldFile> file = *first.CreateHeld("a", 1000);
  ASSERT_THAT(second.Link("b", file), IsOk());
  EXPECT_EQ(second.Find("b"), file);
  EXPECT_EQ(second.bytes_in_use(), 0u);
  EXPECT_THAT(second.Link("b", file),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST(HeldFilesTest, RenamesADirectoryWithAllInIt) {
  HeldFiles files(1000);
  ASSERT_THAT(files.MakeDirectories("job/.tmp-1/deep"), IsOk());
  ASSERT_THAT(files.MakeDirectories("job/.tmp-10"), IsOk());
  ASSERT_THAT(files.CreateHeld("job/.tmp-1/a", 1), IsOk());
  ASSERT_THAT(files.CreateHeld("job/.tmp-1/deep/b", 1), IsOk());
  ASSERT_THAT(files.CreateHeld("job/.tmp-10/c", 1), IsOk());
  EXPECT_THAT(files.Rename("job/.tmp-1", "job/.tmp-1/deep/er"),
              StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(files.Rename("job/.tmp-1", "job/step"), IsOk());
  EXPECT_NE(files.Find("job/step/a"), nullptr);
  EXPECT_NE(files.Find("job/step/deep/b"), nullptr);
  EXPECT_EQ(files.Find("job/.tmp-1/a"), nullptr);
  EXPECT_NE(files.Find("job/.tmp-10/c"), nullptr);
}

}  // namespace
}  // namespace ballast::snapshot
