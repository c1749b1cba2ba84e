#include "server/base/memory_info.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace ballast::base {
namespace {

class MemoryInfoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(root_);
    Write("proc/meminfo",
          "MemTotal:  8000 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\n");
    Write("proc/self/cgroup", "0::/pods/a\n");
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Available() {
    return AvailableMemoryBytes(root_ / "proc", root_ / "cgroup");
  }

  const std::filesystem::path root_ =
      std::filesystem::path(::testing::TempDir()) / "memory_info_test";
};

TEST_F(MemoryInfoTest, IsWhatTheSystemHas) {
  EXPECT_EQ(Available(), 1000u * 1024);
}

TEST_F(MemoryInfoTest, IsBoundByEveryCgroupAbove) {
  Write("cgroup/pods/a/memory.max", "max\n");
  Write("cgroup/pods/a/memory.current", "5\n");
  Write("cgroup/pods/memory.max", "500000\n");
  Write("cgroup/pods/memory.current", "300000\n");
  EXPECT_EQ(Available(), 200'000u);
  Write("cgroup/pods/memory.stat", "anon 9\nfile 150000\nshmem 50000\n");
  EXPECT_EQ(Available(), 300'000u) << "page cache can be dropped";
  Write("cgroup/pods/memory.current", "900000\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(MemoryInfoTest, KnowsNothingWithoutFiles) {
  std::filesystem::remove_all(root_);
  EXPECT_EQ(Available(), UINT64_MAX);
}

TEST_F(MemoryInfoTest, ReadsThisMachine) {
  EXPECT_GT(AvailableMemoryBytes(), 0u);
}

}  // namespace
}  // namespace ballast::base
