// What a daemon of another version left of a job's state is not damage: it is
// for that version, and stays as it is.
#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/hyper_parameters.h"
#include "server/base/ids.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/device/device.h"
#include "server/device/host/host_device.h"
#include "server/device/kept_device.h"
#include "server/layout/layout.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/shard_state.h"

namespace ballast::optimizer {
namespace {

using base::IsOk;
using base::StatusIs;

class OneVault final : public base::Vault {
 public:
  absl::Status Put(std::string_view name, std::string_view,
                   std::span<const int> fds) override {
    name_ = std::string(name);
    fd_.Reset(fcntl(fds[0], F_DUPFD_CLOEXEC, 0));
    return absl::OkStatus();
  }
  absl::Status CheckHeld(std::string_view) const override {
    return absl::OkStatus();
  }
  void Remove(std::string_view) override {}

  device::KeptDevice::Found Found() const {
    device::KeptDevice::Found found;
    found[name_].Reset(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    return found;
  }
  int fd() const { return fd_.get(); }

 private:
  std::string name_;
  base::UniqueFd fd_;
};

constexpr uint64_t kVersionAt = 8;  // after the magic, in both headers

class KeptMemoryTest : public testing::Test {
 protected:
  using Make = std::function<absl::Status(device::Device* device)>;

  // One life makes it, the next ones find it.
  void Check(const std::string& what, uint32_t version, const Make& make) {
    device::KeptDevice first(&host_, &vault_);
    ASSERT_THAT(make(&first), IsOk());
    const auto next = [&] {
      device::KeptDevice device(&host_, &vault_, vault_.Found());
      return make(&device);
    };
    EXPECT_THAT(next(), IsOk());
    for (const uint32_t other : {version + 1, version - 1}) {
      Put(kVersionAt, other);
      EXPECT_THAT(
          next(),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("its ", what, " are kept in format ", other,
                                ", this version knows ", version)));
      uint32_t found = 0;
      ASSERT_EQ(pread(vault_.fd(), &found, sizeof(found), kVersionAt), 4);
      EXPECT_EQ(found, other) << "it is left as it was";
    }
    Put(kVersionAt, version);
    EXPECT_THAT(next(), IsOk());
    // The control: what is damaged is nobody's.
    Put(0, 7);
    EXPECT_THAT(next(), StatusIs(absl::StatusCode::kDataLoss, "damaged"));
  }

  void Put(uint64_t offset, uint32_t value) {
    ASSERT_EQ(pwrite(vault_.fd(), &value, sizeof(value), offset), 4);
  }

  base::SimExecutor executor_{1};
  device::HostDevice host_{{}, &executor_};
  OneVault vault_;
  const layout::Layout layout_ =
      *layout::Layout::Create({{"w", {5000}}, {"b", {3}}}, {2, 1}, 1, {});
};

TEST_F(KeptMemoryTest, ShardStateNamesTheVersionsThatDiffer) {
  Check("optimizer states", ShardState::kVersion, [&](device::Device* device) {
    return ShardState::Create(device, layout_, NodeRank(1),
                              kernels::OptimizerKind::kAdamW, false)
        .status();
  });
}

TEST_F(KeptMemoryTest, ResidualsNameTheVersionsThatDiffer) {
  Check("gradient residuals", Residuals::kVersion, [&](device::Device* device) {
    return Residuals::Create(device, layout_, NodeRank(1)).status();
  });
}

// They were taken for this node's, whoever's they were.
TEST_F(KeptMemoryTest, ResidualsOfAnotherNodeAreRefused) {
  device::KeptDevice first(&host_, &vault_);
  ASSERT_THAT(Residuals::Create(&first, layout_, NodeRank(1)), IsOk());
  device::KeptDevice next(&host_, &vault_, vault_.Found());
  EXPECT_THAT(Residuals::Create(&next, layout_, NodeRank(0)),
              StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace ballast::optimizer
