#include "server/base/unique_fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesOnceWithItsOwner) {
  const int raw = eventfd(0, EFD_CLOEXEC);
  {
    UniqueFd first(raw);
    UniqueFd second = std::move(first);
    EXPECT_FALSE(first);
    EXPECT_EQ(second.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, AssignmentClosesTheOldOne) {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC));
  const int old = fd.get();
  UniqueFd other(eventfd(0, EFD_CLOEXEC));
  fd = std::move(other);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_TRUE(IsOpen(fd.get()));
}

TEST(UniqueFdTest, ReleaseGivesItAway) {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC));
  UniqueFd again(fd.Release());
  EXPECT_FALSE(fd);
  EXPECT_TRUE(IsOpen(again.get()));
}

}  // namespace
}  // namespace ballast::base
