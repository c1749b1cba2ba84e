#include "server/base/cpus.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/status_matchers.h"

namespace ballast::base {
namespace {

using Ints = std::vector<int>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class CpusTest : public ::testing::Test {
 protected:
  CpusTest() {
    std::string name = ::testing::TempDir() + "/cpusXXXXXX";
    root_ = mkdtemp(name.data());
    roots_ = {root_ + "/proc", root_ + "/cgroup", root_ + "/system"};
  }
  ~CpusTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_;
  CpuRoots roots_;
};

TEST_F(CpusTest, ListsGoBothWays) {
  const auto cpus = ParseCpuList("8,0-3,2,10-11");
  ASSERT_THAT(cpus, IsOk());
  EXPECT_EQ(*cpus, (Ints{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(CpuListText(*cpus), "0-3,8,10-11");
  EXPECT_EQ(CpuListText({}), "");
  for (const char* wrong : {"", "a", "1-", "-1", "3-1", "1-2-3", "1,,2",
                            "0-99999999", "0x1", "1 - b"}) {
    EXPECT_THAT(ParseCpuList(wrong), StatusIs(kInvalid)) << wrong;
  }
}

TEST_F(CpusTest, TheTightestCgroupCounts) {
  Write("proc/self/cgroup", "0::/pods/ballast");
  EXPECT_EQ(CpuQuota(roots_), 0);
  Write("cgroup/cpu.max", "max 100000");
  Write("cgroup/pods/cpu.max", "350000 100000");
  EXPECT_EQ(CpuQuota(roots_), 4);
  Write("cgroup/pods/ballast/cpu.max", "50000 100000");
  EXPECT_EQ(CpuQuota(roots_), 1);
}

TEST_F(CpusTest, ThreadsAreSpreadOverTheNodes) {
  Write("system/node/online", "0-1");
  Write("system/node/node0/cpulist", "0-3,8-11");
  Write("system/node/node1/cpulist", "4-7,12-15");
  const Ints cpus = {1, 2, 3, 4, 5, 12};
  const Ints nodes = NumaNodesOf(cpus, roots_);
  EXPECT_EQ(nodes, (Ints{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(SpreadOverNodes(cpus, nodes), (Ints{1, 4, 2, 5, 3, 12}));
  EXPECT_EQ(SpreadOverNodes({7, 8, 9}, {1, 0, 0}), (Ints{8, 7, 9}));
}

TEST_F(CpusTest, WithoutNodesAllAreOne) {
  EXPECT_EQ(NumaNodesOf({0, 5}, roots_), (Ints{0, 0}));
}

TEST_F(CpusTest, ThisMachineHasProcessors) {
  EXPECT_FALSE(UsableCpus().empty());
  EXPECT_EQ(NumaNodesOf(UsableCpus()).size(), UsableCpus().size());
}

// On a thread of its own: the policy is the thread's.
TEST_F(CpusTest, MemoryIsInterleavedWhereTheKernelCan) {
  std::thread([] {
    const absl::Status status = InterleaveMemory({0});
    if (!absl::IsUnimplemented(status) && !absl::IsPermissionDenied(status)) {
      EXPECT_THAT(status, IsOk());
    }
    EXPECT_THAT(InterleaveMemory({-1}), StatusIs(kInvalid));
    EXPECT_FALSE(InterleaveMemory({1000}).ok()) << "there is no such node";
  }).join();
}

}  // namespace
}  // namespace ballast::base
