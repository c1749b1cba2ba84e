#include "server/base/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// I13: new memory holds nothing of anyone.
TEST(SegmentTest, IsZeroSealedAndReserved) {
  auto segment = Segment::Create("test", 10'000);
  ASSERT_THAT(segment, IsOk());
  EXPECT_EQ(segment->size_bytes(), 10'000u);
  EXPECT_TRUE(std::ranges::all_of(
      segment->bytes(), [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(fcntl(segment->fd(), F_GET_SEALS),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_LT(ftruncate(segment->fd(), 0), 0);
  EXPECT_LT(ftruncate(segment->fd(), 1 << 20), 0);
  struct stat info;
  ASSERT_EQ(fstat(segment->fd(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  // 512-byte units: the pages are there before anyone touched them.
  EXPECT_GE(info.st_blocks * 512, 10'000);
  EXPECT_TRUE(fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(SegmentTest, RefusesSizesThatCannotBe) {
  EXPECT_THAT(Segment::Create("test", 0), StatusIs(kInvalid));
  EXPECT_THAT(Segment::Create("test", UINT64_MAX), StatusIs(kInvalid));
}

TEST(SegmentTest, IsSharedThroughADuplicate) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_THAT(segment, IsOk());
  auto fd = segment->Duplicate();
  ASSERT_THAT(fd, IsOk());
  auto other = Segment::Map(*std::move(fd), 4096, Access::kReadWrite);
  ASSERT_THAT(other, IsOk());
  other->bytes()[7] = std::byte{42};
  EXPECT_EQ(segment->bytes()[7], std::byte{42});
}

uint64_t BytesOf(const Segment& segment) {
  struct stat info;
  EXPECT_EQ(fstat(segment.fd(), &info), 0);
  return info.st_blocks * 512;
}

TEST(SegmentTest, ASparseOneTakesWhatIsReservedUntilItIsDiscarded) {
  const uint64_t page = sysconf(_SC_PAGESIZE);
  // More than any machine has.
  auto segment = Segment::CreateSparse("test", uint64_t{1} << 44);
  ASSERT_THAT(segment, IsOk());
  EXPECT_EQ(BytesOf(*segment), 0u);
  ASSERT_THAT(segment->Reserve(page + 1, 2 * page), IsOk());
  EXPECT_EQ(BytesOf(*segment), 3 * page);
  const std::span<std::byte> bytes = segment->bytes();
  bytes[page] = bytes[2 * page] = bytes[3 * page] = std::byte{7};
  // Of a page that is discarded in part, nothing goes.
  segment->Discard(page + 1, 2 * page);
  EXPECT_EQ(BytesOf(*segment), 2 * page);
  EXPECT_EQ(bytes[page], std::byte{7});
  EXPECT_EQ(bytes[2 * page], std::byte{0});
  EXPECT_EQ(bytes[3 * page], std::byte{7});
  EXPECT_THAT(segment->Reserve(0, uint64_t{1} << 44),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(SegmentTest, APrivateCopyIsFrozen) {
  constexpr uint64_t kSize = (64 << 20) + 5000;  // more than one piece
  auto segment = Segment::Create("test", kSize);
  ASSERT_THAT(segment, IsOk());
  segment->bytes()[7] = std::byte{1};
  segment->bytes()[kSize - 1] = std::byte{2};
  auto read_only = segment->OpenReadOnly();
  ASSERT_THAT(read_only, IsOk());
  auto view = Segment::Map(*std::move(read_only), kSize, Access::kReadOnly);
  ASSERT_THAT(view, IsOk());
  auto fd = segment->Duplicate();
  ASSERT_THAT(fd, IsOk());
  auto other = Segment::Map(*std::move(fd), kSize, Access::kReadWrite);
  ASSERT_THAT(other, IsOk());
  const std::byte* const place = view->bytes().data();
  ASSERT_THAT(view->MakePrivate(), IsOk());
  ASSERT_THAT(other->MakePrivate(), IsOk());
  EXPECT_LT(view->fd(), 0);
  EXPECT_EQ(view->bytes().data(), place);
  segment->bytes()[7] = std::byte{3};
  other->bytes()[kSize - 1] = std::byte{4};
  EXPECT_EQ(view->bytes()[7], std::byte{1});
  EXPECT_EQ(other->bytes()[7], std::byte{1});
  EXPECT_EQ(view->bytes()[kSize - 1], std::byte{2});
  EXPECT_EQ(segment->bytes()[kSize - 1], std::byte{2});
}

TEST(SegmentTest, AHeldOneIsFrozenUntilItIsShared) {
  auto segment = Segment::Create("test", 5000);
  ASSERT_THAT(segment, IsOk());
  segment->bytes()[7] = std::byte{1};
  auto view = Segment::Map(*segment->OpenReadOnly(), 5000, Access::kReadOnly);
  ASSERT_THAT(view, IsOk());
  const std::byte* const place = view->bytes().data();
  ASSERT_THAT(view->Hold(), IsOk());
  segment->bytes()[7] = std::byte{2};
  segment->bytes()[4999] = std::byte{2};
  EXPECT_EQ(view->bytes()[7], std::byte{1});
  EXPECT_EQ(view->bytes()[4999], std::byte{});
  ASSERT_THAT(view->Share(), IsOk());
  EXPECT_EQ(view->bytes()[7], std::byte{2});
  EXPECT_EQ(view->bytes()[4999], std::byte{2});
  EXPECT_EQ(view->bytes().data(), place);
}

TEST(SegmentTest, AReadOnlyFdCannotBeMappedWritable) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_THAT(segment, IsOk());
  segment->bytes()[0] = std::byte{1};
  auto fd = segment->OpenReadOnly();
  ASSERT_THAT(fd, IsOk());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd->get(), 0),
            MAP_FAILED);
  EXPECT_LT(
      fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
      0);
  auto reader = Segment::Map(*std::move(fd), 4096, Access::kReadOnly);
  ASSERT_THAT(reader, IsOk());
  EXPECT_EQ(reader->bytes()[0], std::byte{1});
  // The negative control: the writable fd can do both.
  EXPECT_EQ(fallocate(segment->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      0, 4096),
            0);
}

TEST(SegmentTest, MapRefusesWhatCouldFaultLater) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_THAT(segment, IsOk());
  EXPECT_THAT(Segment::Map(*segment->Duplicate(), 4097, Access::kReadWrite),
              StatusIs(kInvalid, "4097"));
  EXPECT_THAT(Segment::Map(*segment->Duplicate(), 0, Access::kReadWrite),
              StatusIs(kInvalid));
  UniqueFd unsealed(memfd_create("x", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_THAT(Segment::Map(std::move(unsealed), 4096, Access::kReadWrite),
              StatusIs(kInvalid, "sealed"));
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(Segment::Map(std::move(null), 4096, Access::kReadWrite),
              StatusIs(kInvalid));
  EXPECT_THAT(Segment::Map(UniqueFd(), 4096, Access::kReadWrite),
              StatusIs(kInvalid));
}

TEST(SegmentTest, MovesWithItsMapping) {
  auto segment = Segment::Create("test", 4096);
  ASSERT_THAT(segment, IsOk());
  Segment moved = *std::move(segment);
  moved.bytes()[0] = std::byte{9};
  Segment empty;
  empty = std::move(moved);
  EXPECT_EQ(empty.bytes()[0], std::byte{9});
}

}  // namespace
}  // namespace ballast::base
