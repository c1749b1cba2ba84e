#include "server/daemon/stored/snapshot_directory.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/posix_file_system.h"

namespace ballast::daemon {
namespace {

using base::IsOk;

class SnapshotDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ballast_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    parent_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }

  SnapshotDirectory Make(snapshot::FileSystem* files) {
    return SnapshotDirectory({.files = files,
                              .io = &pool_,
                              .executor = &executor_,
                              .log = [this](auto&) { ++num_good_; },
                              .warn = [this](auto& line) { bad_ += line; }});
  }

  base::SimExecutor executor_{1};
  base::SimComputePool pool_{&executor_, 1, 1};
  std::string parent_;
  int num_good_ = 0;
  std::string bad_;
};

TEST_F(SnapshotDirectoryTest, OneThatCanBeReadIsNotLookedAtAgain) {
  snapshot::PosixFileSystem files(parent_);
  const SnapshotDirectory directory = Make(&files);
  EXPECT_THAT(directory.status(), IsOk());
  std::filesystem::remove_all(parent_);
  executor_.RunFor(absl::Minutes(1));
  EXPECT_THAT(directory.status(), IsOk());
  EXPECT_EQ(bad_, "");
  EXPECT_EQ(num_good_, 0);  // that it can is no news
}

TEST_F(SnapshotDirectoryTest, OneThatIsMissingMayCome) {
  const std::string path = parent_ + "/mount";
  snapshot::PosixFileSystem files(path);
  const SnapshotDirectory directory = Make(&files);
  EXPECT_FALSE(directory.status().ok());
  EXPECT_NE(bad_.find("No such file or directory"), std::string::npos) << bad_;
  const std::string once = bad_;
  executor_.RunFor(absl::Minutes(1));
  EXPECT_EQ(bad_, once);
  EXPECT_EQ(num_good_, 0);
  std::filesystem::create_directory(path);
  executor_.RunFor(absl::Seconds(10));
  EXPECT_THAT(directory.status(), IsOk());
  EXPECT_EQ(num_good_, 1);
}

}  // namespace
}  // namespace ballast::daemon
