#include "client/worker/connection.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "client/worker/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;

TEST(SocketPathTest, UnderstandsTheThreeSpellings) {
  EXPECT_EQ(*SocketPath("unix:///run/b.sock"), "/run/b.sock");
  EXPECT_EQ(*SocketPath("unix:/run/b.sock"), "/run/b.sock");
  EXPECT_EQ(*SocketPath("/run/b.sock"), "/run/b.sock");
}

TEST(SocketPathTest, RefusesWhatCannotBeAPath) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(SocketPath(""), StatusIs(kInvalid));
  EXPECT_THAT(SocketPath("unix://"), StatusIs(kInvalid));
  EXPECT_THAT(SocketPath("localhost:7470"), StatusIs(kInvalid, "unix:///"));
  for (const char* address :
       {"foo", "tcp://1.2.3.4:5", "unix:b.sock", "unix://run/b.sock"}) {
    EXPECT_THAT(SocketPath(address), StatusIs(kInvalid, "absolute path"));
  }
  EXPECT_THAT(SocketPath("/" + std::string(200, 'x')), StatusIs(kInvalid));
}

TEST(ConnectTest, SaysWhatItTried) {  // I23
  const std::string address = "unix://" + ::testing::TempDir() + "/nobody.sock";
  const auto connection =
      Connect(address, "", absl::Milliseconds(120), nullptr);
  EXPECT_THAT(connection, StatusIs(absl::StatusCode::kUnavailable,
                                   "no daemon at " + address + ": tried "));
  EXPECT_THAT(connection,
              StatusIs(absl::StatusCode::kUnavailable, "BALLAST_ADDRESS"));
}

// The next daemon may have another socket behind the same name (I23): what the
// address leads to is asked anew at each try.
TEST(ConnectTest, ResolvesThePathAtEachTry) {
  FakeDaemon daemon(FakeDaemon::DefaultScript());
  const std::string link = ::testing::TempDir() + "/moved.sock";
  unlink(link.c_str());
  ASSERT_EQ(symlink("/nonexistent/old.sock", link.c_str()), 0);
  int pauses = 0;
  const auto connection = Connect(link, "", absl::Seconds(20), [&] {
    if (++pauses == 2) {
      EXPECT_EQ(unlink(link.c_str()), 0);
      EXPECT_EQ(symlink(SocketPath(daemon.address())->c_str(), link.c_str()),
                0);
    }
    return false;
  });
  EXPECT_THAT(connection.status(), IsOk());
  EXPECT_GE(pauses, 2);
  unlink(link.c_str());
}

TEST(ConnectTest, CanBeInterrupted) {
  EXPECT_THAT(
      Connect("/nonexistent/b.sock", "", absl::Hours(1), [] { return true; }),
      StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace ballast::worker
