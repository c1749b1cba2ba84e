#include "server/snapshot/files/shard_check.h"

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

class ShardCheckTest : public testing::Test {
 protected:
  absl::Status Check() {
    auto file = files_.Open(path_);
    if (!file.ok()) return file.status();
    return CheckShard(**file, info_, nullptr);
  }

  MemoryFileSystem files_;
  const Manifest manifest_ = WriteSmallSnapshot(files_, 2, 1, "step-00000007");
  const FileInfo info_ = manifest_.files[1];
  const std::string path_ =
      absl::StrCat(manifest_.job, "/step-00000007/", info_.name);
};

TEST_F(ShardCheckTest, TakesWhatWasWritten) { EXPECT_THAT(Check(), IsOk()); }

TEST_F(ShardCheckTest, FindsEveryChangedBit) {
  std::string& bytes = *files_.Contents(path_);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int bit = static_cast<int>(i % 8);
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
    EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kDataLoss)) << i;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
  }
  EXPECT_THAT(Check(), IsOk());
}

TEST_F(ShardCheckTest, FindsEveryCut) {
  const std::string bytes = *files_.Contents(path_);
  for (size_t size = 0; size < bytes.size(); size += 7) {
    *files_.Contents(path_) = bytes.substr(0, size);
    EXPECT_THAT(Check(), StatusIs(absl::StatusCode::kDataLoss)) << size;
  }
}

TEST_F(ShardCheckTest, IsGivenUp) {
  const auto file = files_.Open(path_);
  const std::atomic<bool> cancelled{true};
  EXPECT_THAT(CheckShard(**file, info_, &cancelled),
              StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace ballast::snapshot
