#include "server/snapshot/files/held_files.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

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
  EXPECT_TRUE(std::ranges::all_of(
      (*next)->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
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
