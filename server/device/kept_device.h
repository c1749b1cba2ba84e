// A device whose shared memory outlives the process: every buffer goes into a
// vault under its name, and a later life that names it the same gets it back
// as it was left (SharedBuffer::is_adopted).
//
//   first life   AllocateShared(n, "weights")  -> zeros, and vault["weights"]
//   next life    AllocateShared(n, "weights")  -> the same memory
//
// Threading: as the device that it stands before, which it borrows, and the
// vault too. Buffers may outlive it.
#ifndef SERVER_DEVICE_KEPT_DEVICE_H_
#define SERVER_DEVICE_KEPT_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/base/vault.h"
#include "server/device/device.h"

namespace ballast::device {

class KeptDevice final : public Device {
 public:
  using Found = absl::flat_hash_map<std::string, base::UniqueFd>;

  // `found`: what an earlier life left, by name; a name that is not in it is
  // DataLoss then. None: this is the first life.
  KeptDevice(Device* device, base::Vault* vault,
             std::optional<Found> found = std::nullopt);

  const Capabilities& capabilities() const override;
  // Names are unique in one device.
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateShared(
      uint64_t size_bytes, std::string_view name) override;
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateSparse(
      uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override;
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AdoptShared(
      base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) override;
  // What was left under the name, of whatever size: whoever asks finds out what
  // it is. DataLoss if there is nothing.
  absl::StatusOr<std::unique_ptr<SharedBuffer>> AdoptLeft(
      std::string_view name);
  // Memory that takes the place of what was left under the name, once `fill`
  // has written it: after a death the vault has the one or the other, whole.
  absl::StatusOr<std::unique_ptr<SharedBuffer>> Replace(
      uint64_t size_bytes, std::string_view name,
      absl::FunctionRef<void(std::span<std::byte>)> fill);
  absl::StatusOr<std::unique_ptr<PrivateBuffer>> AllocatePrivate(
      uint64_t size_bytes, std::string_view name) override;
  std::unique_ptr<Queue> CreateQueue() override;
  uint64_t shared_bytes_in_use() const override;
  uint64_t private_bytes_in_use() const override;

 private:
  absl::StatusOr<std::unique_ptr<SharedBuffer>> Adopt(uint64_t size_bytes,
                                                      uint64_t charge_bytes,
                                                      std::string_view name);
  absl::StatusOr<std::unique_ptr<SharedBuffer>> Keep(
      absl::StatusOr<std::unique_ptr<SharedBuffer>> buffer,
      std::string_view name);

  Device* const device_;
  base::Vault* const vault_;
  std::optional<Found> found_;
};

}  // namespace ballast::device

#endif  // SERVER_DEVICE_KEPT_DEVICE_H_
