#include "client/ctl/commands.h"

#include "gtest/gtest.h"

namespace ballast::ctl {
namespace {

TEST(CommandsTest, NobodyThereIsUnreachable) {
  Options options;
  options.address = "unix:///nonexistent/admin.sock";
  options.timeout = absl::Seconds(2);
  const Result result = Status(options);
  EXPECT_EQ(result.code, kUnreachable);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("unix:///nonexistent/admin.sock"),
            std::string::npos);
}

TEST(CommandsTest, ADoctorWithoutADaemonSaysSo) {
  Options options;
  options.address = "unix:///nonexistent/admin.sock";
  options.timeout = absl::Seconds(2);
  const Result result = Doctor(options);
  EXPECT_EQ(result.code, kUnreachable);
  EXPECT_EQ(result.out, "");
}

TEST(CommandsTest, AnAddressOfNoKindIsUsage) {
  Options options;
  for (const char* address :
       {"", "foo", "tcp://x", "tcp://x:80", "unix://", "unix:///", ":80",
        "host:", "host:0", "host:65536", "host:x"}) {
    options.address = address;
    const Result result = Status(options);
    EXPECT_EQ(result.code, kUsage) << address;
    EXPECT_NE(result.err.find("unix:///path or host:port"), std::string::npos);
  }
}

TEST(CommandsTest, LaterVerbsSayWhatBringsThem) {
  for (const LaterVerb& verb : LaterVerbs()) {
    const Result result = Later(verb);
    EXPECT_EQ(result.code, kRefused);
    EXPECT_NE(result.err.find("is not there yet: "), std::string::npos);
  }
}

}  // namespace
}  // namespace ballast::ctl
