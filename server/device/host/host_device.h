// Host memory as a device: memfd segments for what workers share, anonymous
// pages for the rest. Queues run at once, on the caller's thread.
#ifndef SERVER_DEVICE_HOST_HOST_DEVICE_H_
#define SERVER_DEVICE_HOST_HOST_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/executor.h"
#include "server/device/device.h"

namespace ballast::device {

class HostDevice final : public Device {
 public:
  struct Options {
    uint64_t limit_bytes = UINT64_MAX;  // shared and private together
  };

  // `executor` outlives the device.
  HostDevice(const Options& options, base::Executor* executor);

  const Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateShared(
      uint64_t size_bytes, std::string_view name) override;
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateSparse(
      uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override;
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AdoptShared(
      base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override;
  absl::StatusOr<std::unique_ptr<PrivateBuffer>> AllocatePrivate(
      uint64_t size_bytes, std::string_view name) override;
  std::unique_ptr<Queue> CreateQueue() override;
  uint64_t shared_bytes_in_use() const override { return shared_bytes_; }
  uint64_t private_bytes_in_use() const override { return private_bytes_; }

 private:
  absl::Status CheckRoom(uint64_t size_bytes, std::string_view name) const;

  const Capabilities capabilities_;
  base::Executor* const executor_;
  uint64_t shared_bytes_ = 0;
  uint64_t private_bytes_ = 0;
};

}  // namespace ballast::device

#endif  // SERVER_DEVICE_HOST_HOST_DEVICE_H_
