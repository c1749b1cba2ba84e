// A bounded lock-free queue of pointers for many producers and consumers
// (D. Vyukov's): every slot carries the ticket that may use it next.
//
// Threading: thread-safe. Neither call blocks, allocates or spins without
// another thread making progress.
#ifndef SERVER_BASE_MPMC_RING_H_
#define SERVER_BASE_MPMC_RING_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ballast::base {

template <typename T>
class MpmcRing {
 public:
  // Room for at least `capacity` entries (the next power of two, 2 or more).
  explicit MpmcRing(size_t capacity)
      : slots_(std::bit_ceil(capacity < 2 ? size_t{2} : capacity)),
        mask_(slots_.size() - 1) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].ticket.store(i, std::memory_order_relaxed);
    }
  }

  size_t capacity() const { return slots_.size(); }

  // False when full.
  bool TryPush(T* value) {
    uint64_t at = tail_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[at & mask_];
      // acquire: the consumer that freed the slot is done with it.
      const uint64_t ticket = slot.ticket.load(std::memory_order_acquire);
      if (ticket == at) {
        if (tail_.compare_exchange_weak(at, at + 1,
                                        std::memory_order_relaxed)) {
          slot.value = value;
          slot.ticket.store(at + 1, std::memory_order_release);
          return true;
        }
      } else if (static_cast<int64_t>(ticket - at) < 0) {
        return false;
      } else {
        at = tail_.load(std::memory_order_relaxed);
      }
    }
  }

  // nullptr when empty, or when the oldest entry is still being written: its
  // producer has not returned from TryPush.
  T* TryPop() {
    uint64_t at = head_.load(std::memory_order_relaxed);
    while (true) {
      Slot& slot = slots_[at & mask_];
      // acquire: what the producer wrote before the push is visible.
      const uint64_t ticket = slot.ticket.load(std::memory_order_acquire);
      if (ticket == at + 1) {
        if (head_.compare_exchange_weak(at, at + 1,
                                        std::memory_order_relaxed)) {
          T* value = slot.value;
          slot.ticket.store(at + slots_.size(), std::memory_order_release);
          return value;
        }
      } else if (static_cast<int64_t>(ticket - (at + 1)) < 0) {
        return nullptr;
      } else {
        at = head_.load(std::memory_order_relaxed);
      }
    }
  }

 private:
  static constexpr size_t kCacheLine = 64;
  struct alignas(kCacheLine) Slot {
    std::atomic<uint64_t> ticket{0};
    T* value = nullptr;
  };

  std::vector<Slot> slots_;
  const size_t mask_;
  alignas(kCacheLine) std::atomic<uint64_t> head_{0};
  alignas(kCacheLine) std::atomic<uint64_t> tail_{0};
};

}  // namespace ballast::base

#endif  // SERVER_BASE_MPMC_RING_H_
