#include "server/device/kept_device.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"

namespace ballast::device {
namespace {

class MapVault final : public base::Vault {
 public:
  absl::Status Put(std::string_view name, std::string_view,
                   std::span<const int> fds) override {
    if (!refusal.ok()) return refusal;
    items[std::string(name)].Reset(fcntl(fds[0], F_DUPFD_CLOEXEC, 0));
    return absl::OkStatus();
  }
  absl::Status CheckHeld(std::string_view) const override { return refusal; }
  void Remove(std::string_view) override {}

  std::map<std::string, base::UniqueFd> items;
  absl::Status refusal = absl::OkStatus();
};

class KeptDeviceTest : public testing::Test {
 protected:
  KeptDevice NextLife() {
    KeptDevice::Found found;
    for (auto& [name, fd] : vault_.items) found[name] = std::move(fd);
    return KeptDevice(&host_, &vault_, std::move(found));
  }

  base::SimExecutor executor_{1};
  HostDevice host_{{}, &executor_};
  MapVault vault_;
};

TEST_F(KeptDeviceTest, TheNextLifeFindsItAsItWasLeft) {
  KeptDevice first(&host_, &vault_);
  {
    auto buffer = first.AllocateShared(5000, "a");
    ASSERT_THAT(buffer, base::IsOk());
    EXPECT_FALSE((*buffer)->is_adopted());
    (*buffer)->bytes()[4999] = std::byte{7};
  }
  EXPECT_EQ(host_.shared_bytes_in_use(), 0);
  KeptDevice next = NextLife();
  auto buffer = next.AllocateShared(5000, "a");
  ASSERT_THAT(buffer, base::IsOk());
  EXPECT_TRUE((*buffer)->is_adopted());
  EXPECT_EQ((*buffer)->bytes()[4999], std::byte{7});
  EXPECT_EQ(host_.shared_bytes_in_use(), 5000);
  // Once.
  EXPECT_TRUE(absl::IsDataLoss(next.AllocateShared(5000, "a").status()));
}

// What is in it, and what is not, stays so; it is counted as it was.
TEST_F(KeptDeviceTest, ASparseOneStaysSparse) {
  constexpr uint64_t kSize = 1 << 20;
  const auto true_bytes = [](const SharedBuffer& buffer) {
    struct stat info {};
    const auto fd = buffer.Export(base::Access::kReadOnly);
    EXPECT_EQ(fstat(fd->get(), &info), 0);
    return info.st_blocks * 512;
  };
  KeptDevice first(&host_, &vault_);
  {
    auto buffer = first.AllocateSparse(kSize, 5000, "a");
    ASSERT_THAT(buffer, base::IsOk());
    ASSERT_THAT((*buffer)->Reserve(8192, 4096), base::IsOk());
    (*buffer)->bytes()[8192] = std::byte{7};
  }
  KeptDevice next = NextLife();
  auto buffer = next.AllocateSparse(kSize, 5000, "a");
  ASSERT_THAT(buffer, base::IsOk());
  EXPECT_TRUE((*buffer)->is_adopted());
  EXPECT_EQ((*buffer)->bytes()[8192], std::byte{7});
  EXPECT_EQ(host_.shared_bytes_in_use(), 5000);
  EXPECT_EQ(true_bytes(**buffer), 4096);
  (*buffer)->Discard(8192, 4096);
  EXPECT_EQ(true_bytes(**buffer), 0);
  EXPECT_EQ((*buffer)->bytes()[8192], std::byte{0});
}

TEST_F(KeptDeviceTest, WhatWasLeftGivesWayToAnotherSize) {
  KeptDevice first(&host_, &vault_);
  ASSERT_THAT(first.AllocateShared(5000, "a").status(), base::IsOk());
  EXPECT_TRUE(absl::IsDataLoss(first.AdoptLeft("a").status()));  // no next life
  KeptDevice next = NextLife();
  EXPECT_TRUE(absl::IsDataLoss(next.AdoptLeft("b").status()));
  {
    auto left = next.AdoptLeft("a");
    ASSERT_THAT(left, base::IsOk());
    EXPECT_EQ((*left)->size_bytes(), 5000);
  }
  auto buffer = next.Replace(9000, "a", [&](std::span<std::byte> bytes) {
    EXPECT_FALSE(vault_.items["a"]);  // not before it is written
    bytes[8999] = std::byte{3};
  });
  ASSERT_THAT(buffer, base::IsOk());
  EXPECT_FALSE((*buffer)->is_adopted());
  KeptDevice third = NextLife();
  auto again = third.AllocateShared(9000, "a");
  ASSERT_THAT(again, base::IsOk());
  EXPECT_EQ((*again)->bytes()[8999], std::byte{3});
}

TEST_F(KeptDeviceTest, AnotherSizeOrNameIsRefused) {
  KeptDevice first(&host_, &vault_);
  ASSERT_THAT(first.AllocateShared(5000, "a").status(), base::IsOk());
  KeptDevice next = NextLife();
  const absl::Status other = next.AllocateShared(5000, "b").status();
  EXPECT_TRUE(absl::IsDataLoss(other));
  EXPECT_TRUE(absl::StrContains(other.message(), "\"b\" was not kept"));
  const absl::Status longer = next.AllocateShared(5001, "a").status();
  EXPECT_TRUE(absl::IsDataLoss(longer));
  EXPECT_TRUE(absl::StrContains(
      longer.message(), "\"a\" was kept with 5000 bytes, it needs 5001"));
}

// I27: no memory of ours, or one that could shrink under us.
TEST_F(KeptDeviceTest, WhatIsNoSealedMemoryIsRefused) {
  KeptDevice::Found found;
  found["a"].Reset(open("/dev/null", O_RDWR | O_CLOEXEC));
  KeptDevice next(&host_, &vault_, std::move(found));
  EXPECT_TRUE(absl::IsDataLoss(next.AllocateShared(1, "a").status()));
}

TEST_F(KeptDeviceTest, WhatCannotBeKeptIsSaid) {
  vault_.refusal = absl::ResourceExhaustedError("no descriptor");
  KeptDevice first(&host_, &vault_);
  EXPECT_TRUE(absl::IsResourceExhausted(first.AllocateShared(8, "a").status()));
  EXPECT_EQ(host_.shared_bytes_in_use(), 0);
}

}  // namespace
}  // namespace ballast::device
