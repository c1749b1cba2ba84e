// Where an optimizer step keeps the old values of what it is about to change,
// so that a process that dies at any instruction leaves either the old values
// in place or a copy of them that is known to be complete.
#ifndef KERNELS_STEP_UNDO_H_
#define KERNELS_STEP_UNDO_H_

#include <atomic>
#include <cstdint>

namespace ballast::kernels {

// Stores between what was stored before and what is stored behind it, for an
// observer that looks when this thread has died: a death falls between two
// instructions, so that only the compiler could change the order.
template <typename T>
[[gnu::always_inline]] inline void StoreInOrder(std::atomic<T>* word, T value) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  word->store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

struct StepUndo {
  // As many elements as the step has, each null where the step's array is.
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  // first + n says: the old values of the step's first n elements are in the
  // arrays above. Only grows during a call, and ends at first + count.
  std::atomic<int64_t>* saved = nullptr;
  int64_t first = 0;
};

}  // namespace ballast::kernels

#endif  // KERNELS_STEP_UNDO_H_
