#include "server/daemon/worker_door.h"

#include <stdlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/daemon/limited_log.h"

namespace ballast::daemon {
namespace {

using base::IsOk;
using base::StatusIs;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

v1::SecurityConfig WithToken(const std::string& content) {
  const char* const folder = getenv("TEST_TMPDIR");
  const std::string path =
      std::string(folder != nullptr ? folder : "/tmp") + "/token";
  std::ofstream(path) << content;
  v1::SecurityConfig config;
  config.set_token_file(path);
  return config;
}

TEST(ReadTokenTest, NoFileIsNoToken) {
  const auto token = ReadToken({});
  ASSERT_THAT(token, IsOk());
  EXPECT_EQ(*token, "");
}

TEST(ReadTokenTest, LeavesTheEndOfTheLineOut) {
  const auto token = ReadToken(WithToken("secret\r\n"));
  ASSERT_THAT(token, IsOk());
  EXPECT_EQ(*token, "secret");
}

TEST(ReadTokenTest, RefusesEmptyMissingAndLong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ReadToken(WithToken("\n")), StatusIs(kInvalid));
  EXPECT_THAT(ReadToken(WithToken(std::string(4097, 'x'))), StatusIs(kInvalid));
  EXPECT_THAT(ReadToken(WithToken(std::string(4096, 'x'))), IsOk());
  v1::SecurityConfig missing;
  missing.set_token_file("/nonexistent");
  EXPECT_THAT(ReadToken(missing), StatusIs(kInvalid, "/nonexistent"));
}

TEST(AdmitTest, WantsTheToken) {
  const ipc::PeerIdentity peer{.pid = 1, .uid = 5, .gid = 5};
  EXPECT_THAT(Admit({}, "", 7, peer, ""), IsOk());
  EXPECT_THAT(Admit({}, "", 7, peer, "unneeded"), IsOk());
  EXPECT_THAT(Admit({}, "secret", 7, peer, "secret"), IsOk());
  EXPECT_THAT(Admit({}, "secret", 7, peer, ""), StatusIs(kDenied, "wants"));
  EXPECT_THAT(Admit({}, "secret", 7, peer, "Secret"), StatusIs(kDenied));
}

TEST(AdmitTest, SameUidExceptsRoot) {
  v1::SecurityConfig config;
  config.set_require_same_uid(true);
  EXPECT_THAT(Admit(config, "", 7, {.pid = 1, .uid = 7, .gid = 0}, ""), IsOk());
  EXPECT_THAT(Admit(config, "", 7, {.pid = 1, .uid = 0, .gid = 0}, ""), IsOk());
  EXPECT_THAT(Admit(config, "", 7, {.pid = 1, .uid = 8, .gid = 0}, ""),
              StatusIs(kDenied, "uid 8"));
}

TEST(LimitedLogTest, AFloodIsAFewLinesAndACount) {  // I26
  base::SimExecutor executor(1);
  std::vector<std::string> lines;
  LimitedLog log(&executor, "refused workers",
                 [&](const std::string& line) { lines.push_back(line); });
  for (int i = 0; i < 1000; ++i) log.Log("refused");
  EXPECT_EQ(lines.size(), 10);
  executor.RunFor(2 * LimitedLog::kWindow);
  ASSERT_EQ(lines.size(), 11);
  EXPECT_EQ(lines[10], "log limited: refused workers, left_out=990 within=10s");
  // Calm again: every line, and no count.
  log.Log("refused");
  executor.RunFor(2 * LimitedLog::kWindow);
  EXPECT_EQ(lines.size(), 12);
  EXPECT_EQ(lines[11], "refused");
}

}  // namespace
}  // namespace ballast::daemon
