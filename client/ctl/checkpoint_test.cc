#include "client/ctl/checkpoint.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "server/snapshot/files/posix_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::ctl {
namespace {

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/ctl-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    snapshot::PosixFileSystem files(root_);
    manifest_ = snapshot::WriteSmallSnapshot(files, 2, 1, "step-00000007");
    path_ = root_ + "/job/step-00000007";
  }

  std::string root_;
  std::string path_;
  snapshot::Manifest manifest_;
  Options options_;
};

TEST_F(CheckpointTest, Lists) {
  Result result = CheckpointList(options_, root_);
  EXPECT_EQ(result.code, kOk);
  EXPECT_NE(result.out.find("job/step-00000007"), std::string::npos);
  options_.json = true;
  result = CheckpointList(options_, root_);
  EXPECT_NE(result.out.find("\"world_size\": 2"), std::string::npos);
  EXPECT_EQ(CheckpointList(options_, root_ + "/none").code, kNotFound);
}

TEST_F(CheckpointTest, VerifiesAndFindsDamage) {
  EXPECT_EQ(CheckpointVerify(options_, path_).code, kOk);
  EXPECT_EQ(CheckpointVerify(options_, path_ + "/").code, kOk);
  EXPECT_EQ(CheckpointVerify(options_, root_ + "/job/none").code, kNotFound);
  const std::string shard = path_ + "/" + manifest_.files[1].name;
  std::FILE* const file = std::fopen(shard.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, -20, SEEK_END);
  std::fputc('x', file);
  std::fclose(file);
  const Result result = CheckpointVerify(options_, path_);
  EXPECT_EQ(result.code, kFailed);
  EXPECT_NE(result.err.find(manifest_.files[1].name), std::string::npos);
  EXPECT_NE(result.err.find("checksum"), std::string::npos);
}

TEST_F(CheckpointTest, ExportsOnce) {
  const std::string out = root_ + "/model.safetensors";
  EXPECT_EQ(CheckpointExport(options_, path_, out, false).code, kOk);
  const Result again = CheckpointExport(options_, path_, out, true);
  EXPECT_EQ(again.code, kRefused);
  EXPECT_NE(again.err.find("exists"), std::string::npos);
  EXPECT_EQ(CheckpointExport(options_, path_, root_ + "/none/model", true).code,
            kNotFound);
}

}  // namespace
}  // namespace ballast::ctl
