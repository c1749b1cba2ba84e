#include "server/device/host/host_device.h"

#include "gtest/gtest.h"
#include "server/device/device_conformance.h"

namespace ballast::device {
namespace {

class HostTestDevice final : public TestDevice {
 public:
  HostTestDevice(base::Executor* executor, uint64_t limit_bytes)
      : device_({.limit_bytes = limit_bytes}, executor) {}
  Device* device() override { return &device_; }

 private:
  HostDevice device_;
};

INSTANTIATE_TEST_SUITE_P(
    Host, DeviceConformance,
    ::testing::Values([](base::Executor* executor, uint64_t limit_bytes) {
      return std::unique_ptr<TestDevice>(
          std::make_unique<HostTestDevice>(executor, limit_bytes));
    }));

}  // namespace
}  // namespace ballast::device
