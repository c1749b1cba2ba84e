// One device of this node: its memory and its ordered queues. Host memory is
// one device (host/), each GPU will be one.
//
// Threading: Device on the control thread; a Queue's work runs in its own
// order and its completion on the control thread. Buffers are
// thread-compatible.
// Lifetime: a device outlives its buffers and queues.
#ifndef SERVER_DEVICE_DEVICE_H_
#define SERVER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/segment.h"
#include "server/base/unique_fd.h"

namespace ballast::device {

struct Capabilities {
  std::string name;           // "host"
  bool is_host_addressable;   // bytes() may be read and written by the CPU
  bool can_export_read_only;  // Export(kReadOnly) really forbids writing
  uint64_t limit_bytes;       // that may be in use at once
};

// Memory that worker processes map too; it outlives them.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  virtual uint64_t size_bytes() const = 0;
  // Device addresses; host code looks only if is_host_addressable.
  virtual std::span<std::byte> bytes() = 0;
  // A new fd for another process.
  virtual absl::StatusOr<base::UniqueFd> Export(base::Access access) const = 0;
  // Memory for a range of a sparse buffer before it is written; the memory of
  // the whole pages in a range given back, they read as zeros.
  virtual absl::Status Reserve(uint64_t offset, uint64_t size_bytes) = 0;
  virtual void Discard(uint64_t offset, uint64_t size_bytes) = 0;
  // Not new and not zeros: as an earlier life of this process left it.
  virtual bool is_adopted() const = 0;
};

class PrivateBuffer {
 public:
  virtual ~PrivateBuffer() = default;
  virtual uint64_t size_bytes() const = 0;
  virtual std::span<std::byte> bytes() = 0;
};

// Ordered work: what is enqueued first is done first.
class Queue {
 public:
  virtual ~Queue() = default;

  // Equal sizes, no overlap; both stay valid until a later OnDone reported.
  virtual void Copy(std::span<std::byte> to,
                    std::span<const std::byte> from) = 0;
  virtual void Fill(std::span<std::byte> to, std::byte value) = 0;

  // Calls `fn` on the control thread after all that was enqueued before;
  // with an error if some of it failed.
  virtual void OnDone(absl::AnyInvocable<void(absl::Status) &&> fn) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const Capabilities& capabilities() const = 0;

  // Zeroed, aligned to a page. InvalidArgument for 0 bytes; ResourceExhausted
  // says how much is in use and what the limit is. `name` is for people.
  virtual absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateShared(
      uint64_t size_bytes, std::string_view name) = 0;
  // Without memory until parts are reserved; counted as `charge_bytes`, which
  // its owner keeps to.
  virtual absl::StatusOr<std::unique_ptr<SharedBuffer>> AllocateSparse(
      uint64_t size_bytes, uint64_t charge_bytes, std::string_view name) = 0;
  // Memory that an earlier life allocated and exported, as it was left, sparse
  // (then `charge_bytes` counts, else `size_bytes`) or not. DataLoss if it is
  // none of exactly this size.
  virtual absl::StatusOr<std::unique_ptr<SharedBuffer>> AdoptShared(
      base::UniqueFd fd, uint64_t size_bytes, uint64_t charge_bytes,
      std::string_view name) = 0;
  virtual absl::StatusOr<std::unique_ptr<PrivateBuffer>> AllocatePrivate(
      uint64_t size_bytes, std::string_view name) = 0;

  virtual std::unique_ptr<Queue> CreateQueue() = 0;

  virtual uint64_t shared_bytes_in_use() const = 0;
  virtual uint64_t private_bytes_in_use() const = 0;
};

}  // namespace ballast::device

#endif  // SERVER_DEVICE_DEVICE_H_
