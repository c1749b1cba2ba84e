#include "server/ipc/socket_path.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::ipc {
namespace {

using base::IsOk;
using base::StatusIs;

class SocketPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ballast_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ + "/run/ballastd.sock";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  absl::StatusOr<SocketPath> Listen() {
    return SocketPath::Listen(path_, SOCK_SEQPACKET, 0666);
  }
  bool CanConnect() {
    base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    return connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)) == 0;
  }
  static mode_t ModeOf(const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(SocketPathTest, MakesDirectoryAndSocketWithTheirModes) {
  const mode_t old = umask(0077);
  {
    auto socket = Listen();
    ASSERT_THAT(socket, IsOk());
    EXPECT_TRUE(CanConnect());
    EXPECT_EQ(ModeOf(directory_ + "/run"), 0755u);
    EXPECT_EQ(ModeOf(path_), 0666u);
  }
  umask(old);
  // I28
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/run"));
}

TEST_F(SocketPathTest, ALiveOwnerIsRefusedAndNamed) {
  auto first = Listen();
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(Listen(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "pid " + std::to_string(getpid())));
  EXPECT_TRUE(CanConnect()) << "the first one is not harmed";
}

TEST_F(SocketPathTest, AClaimedPathIsTakenAndLetsNobodyInUntilItOpens) {
  auto socket = SocketPath::Claim(path_, SOCK_SEQPACKET, 0666);
  ASSERT_THAT(socket, IsOk());
  EXPECT_FALSE(CanConnect());
  EXPECT_THAT(Listen(), StatusIs(absl::StatusCode::kFailedPrecondition));
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(socket->Open(), IsOk());
    EXPECT_TRUE(CanConnect());
  }
}

// I28: SIGKILL leaves files, and a restart in the same directory succeeds.
TEST_F(SocketPathTest, ADeadOwnersSocketIsReplaced) {
  const pid_t child = fork();
  if (child == 0) {
    auto socket = Listen();
    if (socket.ok()) raise(SIGKILL);
    _exit(1);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(std::filesystem::exists(path_));
  ASSERT_FALSE(CanConnect());
  auto socket = Listen();
  ASSERT_THAT(socket, IsOk());
  EXPECT_TRUE(CanConnect());
}

TEST_F(SocketPathTest, OneAfterTheOther) {
  for (int i = 0; i < 3; ++i) {
    auto socket = Listen();
    ASSERT_THAT(socket, IsOk());
    std::optional<SocketPath> moved(*std::move(socket));
    EXPECT_TRUE(CanConnect());
  }
}

TEST_F(SocketPathTest, AFileThatIsNoSocketIsNotTouched) {
  std::filesystem::create_directories(directory_ + "/run");
  std::ofstream(path_) << "precious";
  EXPECT_THAT(Listen(), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(SocketPathTest, RefusesPathsThatDoNotFit) {
  path_ = "/tmp/" + std::string(200, 'x');
  EXPECT_THAT(Listen(), StatusIs(absl::StatusCode::kInvalidArgument, "107"));
  path_ = "";
  EXPECT_THAT(Listen(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace ballast::ipc
