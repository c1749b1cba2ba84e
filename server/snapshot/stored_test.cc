#include "server/snapshot/stored.h"

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/posix_file_system.h"
#include "server/snapshot/files/snapshot_testing.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

const std::vector<layout::TensorSpec>& Tensors() {
  static const std::vector<layout::TensorSpec> tensors = [] {
    std::vector<layout::TensorSpec> specs;
    for (const TensorInfo& tensor : SmallManifest(1, 1).tensors) {
      specs.push_back({tensor.name, tensor.shape, tensor.dtype,
                       tensor.trainable, tensor.group});
    }
    return specs;
  }();
  return tensors;
}

constexpr char kJob[] = "job";

TEST(StoredTest, FindsTheNewestOrTheOneThatIsNamed) {
  MemoryFileSystem files;
  const JobIdentity identity = {.tenant = "default",
                                .uid = 0,
                                .optimizer = kernels::OptimizerKind::kAdamW,
                                .any_momentum = false,
                                .num_groups = 2};
  const auto find = [&](const std::string& load) {
    return FindStored(files, kJob, load, identity, Tensors());
  };
  ASSERT_THAT(find(""), IsOk());
  EXPECT_FALSE(find("")->has_value());
  EXPECT_THAT(find("best"), StatusIs(absl::StatusCode::kNotFound, "job/best"));
  EXPECT_THAT(find("../best"), StatusIs(absl::StatusCode::kInvalidArgument));
  WriteSmallSnapshot(files, 2, 1, "best");
  ASSERT_THAT(find(""), IsOk());
  EXPECT_EQ((*find(""))->path, "job/best");
  EXPECT_EQ((*find(""))->step, 7);
  EXPECT_NE((*find(""))->checksum, 0u);
  EXPECT_EQ((*find("best"))->path, "job/best");
  EXPECT_THAT(FindStored(files, "other", "job/best", identity, Tensors()),
              IsOk());
  // Another model does not silently start anew.
  std::vector<layout::TensorSpec> other = Tensors();
  other[0].shape = {5, 3};
  EXPECT_THAT(FindStored(files, kJob, "", identity, other),
              StatusIs(absl::StatusCode::kInvalidArgument, "resume=\"never\""));
}

// A directory that was copied, or renamed, from another job's.
TEST(StoredTest, AnotherJobsIsNotGoneOnWith) {
  MemoryFileSystem files;
  WriteSmallSnapshot(files, 2, 1, "step-00000007");
  ASSERT_THAT(files.Rename("job", "copy"), IsOk());
  const JobIdentity identity = {.tenant = "default",
                                .uid = 0,
                                .optimizer = kernels::OptimizerKind::kAdamW,
                                .any_momentum = false,
                                .num_groups = 2};
  EXPECT_THAT(FindStored(files, "copy", "", identity, Tensors()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "snapshot \"copy/step-00000007\" is of job \"job\", not "
                       "of \"copy\""));
  // Who names it means it.
  EXPECT_THAT(FindStored(files, "copy", "step-00000007", identity, Tensors()),
              IsOk());
  ASSERT_THAT(files.Rename("copy", "job"), IsOk());
  EXPECT_THAT(FindStored(files, kJob, "", identity, Tensors()), IsOk());
}

// Where nothing can be read nothing is known, and no job begins anew.
TEST(StoredTest, WhatCannotBeReadIsNotNothing) {
  PosixFileSystem files("/nonexistent/ballast-stored-test");
  EXPECT_THAT(FindStored(files, kJob, "", {}, Tensors()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "snapshots.directory cannot be read"));
}

}  // namespace
}  // namespace ballast::snapshot
