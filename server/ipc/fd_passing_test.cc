#include "server/ipc/fd_passing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::ipc {
namespace {

using base::IsOk;
using base::StatusIs;
using base::UniqueFd;

int NumOpenFds() {
  int count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

class FdPassingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    here_ = UniqueFd(fds[0]);
    there_ = UniqueFd(fds[1]);
  }
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  // Receives on the far side.
  IoResult Receive() {
    auto result = ReceivePacket(there_.get(), buffer_, &packet_);
    EXPECT_THAT(result, IsOk());
    return *result;
  }

  UniqueFd here_;
  UniqueFd there_;
  std::array<std::byte, 16> buffer_;
  Packet packet_;
};

TEST_F(FdPassingTest, PassesBytesAndDescriptors) {
  UniqueFd event(eventfd(5, 0));
  const int fd = event.get();
  ASSERT_THAT(SendPacket(here_.get(), Bytes("hello"), std::span(&fd, 1)),
              IsOk());
  event.Reset();
  ASSERT_EQ(Receive(), IoResult::kDone);
  EXPECT_EQ(packet_.size, 5u);
  EXPECT_EQ(std::memcmp(buffer_.data(), "hello", 5), 0);
  EXPECT_FALSE(packet_.is_truncated);
  ASSERT_EQ(packet_.fds.size(), 1u);
  eventfd_t value;
  ASSERT_EQ(eventfd_read(packet_.fds[0].get(), &value), 0);
  EXPECT_EQ(value, 5u);
  EXPECT_TRUE(fcntl(packet_.fds[0].get(), F_GETFD) & FD_CLOEXEC);
}

TEST_F(FdPassingTest, NeverBlocks) {
  EXPECT_EQ(Receive(), IoResult::kWouldBlock);
  absl::StatusOr<IoResult> sent = IoResult::kDone;
  int count = 0;
  while (*sent == IoResult::kDone && count < 100'000) {
    sent = SendPacket(here_.get(), Bytes("x"), {});
    ASSERT_THAT(sent, IsOk());
    ++count;
  }
  EXPECT_EQ(*sent, IoResult::kWouldBlock);
}

TEST_F(FdPassingTest, ReportsTheEnd) {
  ASSERT_THAT(SendPacket(here_.get(), Bytes("last"), {}), IsOk());
  here_.Reset();
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_FALSE(packet_.is_end);
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_TRUE(packet_.is_end);
  EXPECT_THAT(SendPacket(there_.get(), Bytes("x"), {}),
              StatusIs(absl::StatusCode::kUnavailable));
}

// A peer that refuses and closes before it read everything.
TEST_F(FdPassingTest, LastWordsSurviveUnreadPackets) {
  ASSERT_THAT(SendPacket(there_.get(), Bytes("unread"), {}), IsOk());
  ASSERT_THAT(SendPacket(here_.get(), Bytes("no"), {}), IsOk());
  here_.Reset();
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_EQ(packet_.size, 2u);
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_TRUE(packet_.is_end);
}

TEST_F(FdPassingTest, SaysWhenBytesAreLost) {
  ASSERT_THAT(SendPacket(here_.get(), Bytes("more than sixteen bytes"), {}),
              IsOk());
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_TRUE(packet_.is_truncated);
}

// I26, I28: a flood of descriptors is noticed, and none of them stays.
TEST_F(FdPassingTest, ClosesDescriptorsThatNobodyAskedFor) {
  const int before = NumOpenFds();
  std::vector<int> many(100, here_.get());
  iovec io{const_cast<char*>("x"), 1};
  std::vector<char> control(CMSG_SPACE(many.size() * sizeof(int)));
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(many.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), many.data(), many.size() * sizeof(int));
  ASSERT_EQ(sendmsg(here_.get(), &message, 0), 1);
  EXPECT_EQ(Receive(), IoResult::kDone);
  EXPECT_TRUE(packet_.is_truncated);
  EXPECT_LE(packet_.fds.size(), static_cast<size_t>(kMaxPassedFds));
  EXPECT_FALSE(packet_.lacks_fds) << "the sender's fault";
  packet_ = Packet();
  EXPECT_EQ(NumOpenFds(), before);
}

// I26: the daemon's lack of descriptors is not the worker's fault.
TEST_F(FdPassingTest, SaysWhenThisProcessMayNotOpenMore) {
  const int fd = here_.get();
  ASSERT_THAT(SendPacket(here_.get(), Bytes("hello"), std::span(&fd, 1)),
              IsOk());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  // Not Receive(): to check whose member that is, the sanitizer opens a pipe.
  const absl::StatusOr<IoResult> result =
      ReceivePacket(there_.get(), buffer_, &packet_);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*result, IoResult::kDone);
  EXPECT_EQ(packet_.size, 5u);
  EXPECT_TRUE(packet_.is_truncated);
  EXPECT_TRUE(packet_.lacks_fds);
}

TEST_F(FdPassingTest, RefusesToSendNothingOrTooMuch) {
  const std::vector<int> fds(kMaxPassedFds + 1, 0);
  EXPECT_THAT(SendPacket(here_.get(), {}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(SendPacket(here_.get(), Bytes("x"), fds),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ballast::ipc
