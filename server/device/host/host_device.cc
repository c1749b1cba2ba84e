#include "server/device/host/host_device.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/errno_status.h"
#include "server/base/memory_info.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::device {
namespace {

// Counts its bytes in the device as long as it lives.
class Charge {
 public:
  Charge(uint64_t* total, uint64_t bytes) : total_(total), bytes_(bytes) {
    *total_ += bytes_;
  }
  ~Charge() { *total_ -= bytes_; }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

 private:
  uint64_t* const total_;
  const uint64_t bytes_;
};

class HostSharedBuffer final : public SharedBuffer {
 public:
  HostSharedBuffer(base::Segment segment, uint64_t* total,
                   uint64_t charge_bytes, bool is_adopted = false)
      : segment_(std::move(segment)),
        charge_(total, charge_bytes),
        is_adopted_(is_adopted) {}

  uint64_t size_bytes() const override { return segment_.size_bytes(); }
  std::span<std::byte> bytes() override { return segment_.bytes(); }
  absl::StatusOr<base::UniqueFd> Export(base::Access access) const override {
    return access == base::Access::kReadOnly ? segment_.OpenReadOnly()
                                             : segment_.Duplicate();
  }
  absl::Status Reserve(uint64_t offset, uint64_t size_bytes) override {
    return segment_.Reserve(offset, size_bytes);
  }
  void Discard(uint64_t offset, uint64_t size_bytes) override {
    segment_.Discard(offset, size_bytes);
  }
  bool is_adopted() const override { return is_adopted_; }

 private:
  base::Segment segment_;
  const Charge charge_;
  const bool is_adopted_;
};

class HostPrivateBuffer final : public PrivateBuffer {
 public:
  HostPrivateBuffer(std::byte* data, uint64_t size_bytes, uint64_t* total)
      : data_(data), size_bytes_(size_bytes), charge_(total, size_bytes) {}
  ~HostPrivateBuffer() override { munmap(data_, size_bytes_); }

  uint64_t size_bytes() const override { return size_bytes_; }
  std::span<std::byte> bytes() override { return {data_, size_bytes_}; }

 private:
  std::byte* const data_;
  const uint64_t size_bytes_;
  const Charge charge_;
};

class HostQueue final : public Queue {
 public:
  explicit HostQueue(base::Executor* executor) : executor_(executor) {}

  void Copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    if (to.size() != from.size()) {
      Fail(absl::StrCat("copy of ", from.size(), " bytes to ", to.size()));
      return;
    }
    if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
  }

  void Fill(std::span<std::byte> to, std::byte value) override {
    if (!to.empty()) {
      std::memset(to.data(), std::to_integer<int>(value), to.size());
    }
  }

  void OnDone(absl::AnyInvocable<void(absl::Status) &&> fn) override {
    executor_->Post(
        [fn = std::move(fn),
         status = std::exchange(status_, absl::OkStatus())]() mutable {
          std::move(fn)(std::move(status));
        });
  }

 private:
  void Fail(std::string what) {
    if (status_.ok()) status_ = absl::InternalError(what);
  }

  base::Executor* const executor_;
  absl::Status status_;
};

}  // namespace

HostDevice::HostDevice(const Options& options, base::Executor* executor)
    : capabilities_{.name = "host",
                    .is_host_addressable = true,
                    .can_export_read_only = true,
                    .limit_bytes = options.limit_bytes},
      executor_(executor) {}

absl::Status HostDevice::CheckRoom(uint64_t size_bytes,
                                   std::string_view name) const {
  if (size_bytes == 0 || size_bytes > uint64_t{INT64_MAX}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer ", base::Quoted(name), " cannot have ", size_bytes, " bytes"));
  }
  const uint64_t in_use = shared_bytes_ + private_bytes_;
  if (in_use <= capabilities_.limit_bytes &&
      size_bytes <= capabilities_.limit_bytes - in_use) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "buffer ", base::Quoted(name), " of ", size_bytes, " bytes: ", in_use,
      " of ", capabilities_.limit_bytes, " bytes are in use"));
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> HostDevice::AllocateShared(
    uint64_t size_bytes, std::string_view name) {
  RETURN_IF_ERROR(CheckRoom(size_bytes, name));
  ASSIGN_OR_RETURN(base::Segment segment,
                   base::Segment::Create(name, size_bytes));
  return std::make_unique<HostSharedBuffer>(std::move(segment), &shared_bytes_,
                                            size_bytes);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> HostDevice::AllocateSparse(
    uint64_t size_bytes, uint64_t charge_bytes, std::string_view name) {
  RETURN_IF_ERROR(CheckRoom(charge_bytes, name));
  ASSIGN_OR_RETURN(base::Segment segment,
                   base::Segment::CreateSparse(name, size_bytes));
  return std::make_unique<HostSharedBuffer>(std::move(segment), &shared_bytes_,
                                            charge_bytes);
}

absl::StatusOr<std::unique_ptr<SharedBuffer>> HostDevice::AdoptShared(
    base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
    std::string_view name) {
  RETURN_IF_ERROR(CheckRoom(charge_bytes, name));
  struct stat info {};
  if (fstat(fd.get(), &info) < 0 ||
      static_cast<uint64_t>(info.st_size) != size_bytes) {
    return absl::DataLossError(absl::StrCat("buffer ", base::Quoted(name),
                                            " was kept with ", info.st_size,
                                            " bytes, it needs ", size_bytes));
  }
  auto segment =
      base::Segment::Map(std::move(fd), size_bytes, base::Access::kReadWrite);
  if (!segment.ok()) {
    // What is no such memory is lost; what cannot be mapped now is not.
    const bool is_lost = absl::IsInvalidArgument(segment.status());
    return absl::Status(is_lost ? absl::StatusCode::kDataLoss
                                : absl::StatusCode::kResourceExhausted,
                        absl::StrCat("buffer ", base::Quoted(name), ": ",
                                     std::string(segment.status().message())));
  }
  return std::make_unique<HostSharedBuffer>(*std::move(segment), &shared_bytes_,
                                            charge_bytes, /*is_adopted=*/true);
}

absl::StatusOr<std::unique_ptr<PrivateBuffer>> HostDevice::AllocatePrivate(
    uint64_t size_bytes, std::string_view name) {
  RETURN_IF_ERROR(CheckRoom(size_bytes, name));
  // The kernel would grant it and kill somebody when it is touched.
  if (const uint64_t available = base::AvailableMemoryBytes();
      size_bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("buffer ", base::Quoted(name), " of ", size_bytes,
                     " bytes: ", available, " are available"));
  }
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        base::ErrnoStatus(errno, absl::StrCat("map ", size_bytes, " bytes"))
            .message());
  }
  return std::make_unique<HostPrivateBuffer>(static_cast<std::byte*>(data),
                                             size_bytes, &private_bytes_);
}

std::unique_ptr<Queue> HostDevice::CreateQueue() {
  return std::make_unique<HostQueue>(executor_);
}

}  // namespace ballast::device
