#include "server/device/kept_device.h"

#include <sys/stat.h>

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/segment.h"
#include "server/base/status_macros.h"

namespace ballast::device {

KeptDevice::KeptDevice(Device* device, base::Vault* vault,
                       std::optional<Found> found)
    : device_(device), vault_(vault), found_(std::move(found)) {}

const Capabilities& KeptDevice::capabilities() const {
  return device_->capabilities();
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::AllocateShared(
    uint64_t size_bytes, std::string_view name) {
  if (found_.has_value()) return Adopt(size_bytes, size_bytes, name);
  return Keep(device_->AllocateShared(size_bytes, name), name);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::AllocateSparse(
    uint64_t size_bytes, uint64_t charge_bytes, std::string_view name) {
  if (found_.has_value()) return Adopt(size_bytes, charge_bytes, name);
  return Keep(device_->AllocateSparse(size_bytes, charge_bytes, name), name);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::Adopt(
    uint64_t size_bytes, uint64_t charge_bytes, std::string_view name) {
  const auto it = found_->find(std::string(name));
  if (it == found_->end() || !it->second) {
    return absl::DataLossError(
        absl::StrCat("buffer ", base::Quoted(name), " was not kept"));
  }
  return device_->AdoptShared(std::move(it->second), size_bytes, charge_bytes,
                              name);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::Keep(
    absl::StatusOr<std::unique_ptr<SharedBuffer>> buffer,
    std::string_view name) {
  RETURN_IF_ERROR(buffer.status());
  ASSIGN_OR_RETURN(const base::UniqueFd fd,
                   (*buffer)->Export(base::Access::kReadWrite));
  const int number = fd.get();
  RETURN_IF_ERROR(vault_->Put(name, "", std::span(&number, 1)));
  return buffer;
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::AdoptShared(
    base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
    std::string_view name) {
  return device_->AdoptShared(std::move(fd), size_bytes, charge_bytes, name);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::AdoptLeft(
    std::string_view name) {
  struct stat info {};
  const std::string key(name);
  const bool is_left = found_.has_value() && found_->contains(key) &&
                       fstat(found_->find(key)->second.get(), &info) == 0;
  if (!is_left) {
    return absl::DataLossError(
        absl::StrCat("buffer ", base::Quoted(name), " was not kept"));
  }
  return AllocateShared(info.st_size, name);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> KeptDevice::Replace(
    uint64_t size_bytes, std::string_view name,
    absl::FunctionRef<void(std::span<std::byte>)> fill) {
  ASSIGN_OR_RETURN(std::unique_ptr<SharedBuffer> buffer,
                   device_->AllocateShared(size_bytes, name));
  fill(buffer->bytes());
  ASSIGN_OR_RETURN(const base::UniqueFd fd,
                   buffer->Export(base::Access::kReadWrite));
  const int number = fd.get();
  RETURN_IF_ERROR(vault_->Put(name, "", std::span(&number, 1)));
  return buffer;
}

absl::StatusOr<std::unique_ptr<PrivateBuffer>> KeptDevice::AllocatePrivate(
    uint64_t size_bytes, std::string_view name) {
  return device_->AllocatePrivate(size_bytes, name);
}

std::unique_ptr<Queue> KeptDevice::CreateQueue() {
  return device_->CreateQueue();
}

uint64_t KeptDevice::shared_bytes_in_use() const {
  return device_->shared_bytes_in_use();
}

uint64_t KeptDevice::private_bytes_in_use() const {
  return device_->private_bytes_in_use();
}

}  // namespace ballast::device
