// Work that may block (files), one piece after the other, on the threads of a
// pool that is made for it.
//
// Threading: control thread only; `work` runs on a pool thread, `done` on the
// control thread, never from inside Run, and may delete the queue.
// Lifetime: destroyed only when idle, or when the pool runs nothing any more.
#ifndef SERVER_SNAPSHOT_IO_QUEUE_H_
#define SERVER_SNAPSHOT_IO_QUEUE_H_

#include <deque>

#include "absl/functional/any_invocable.h"
#include "server/base/compute_pool.h"

namespace ballast::snapshot {

class IoQueue final : private base::Task {
 public:
  explicit IoQueue(base::ComputePool* pool) : pool_(pool) {}

  void Run(absl::AnyInvocable<void() &&> work,
           absl::AnyInvocable<void() &&> done);
  bool is_idle() const { return pieces_.empty(); }

 private:
  struct Piece {
    absl::AnyInvocable<void() &&> work;
    absl::AnyInvocable<void() &&> done;
  };

  void Run(int thread) override;
  void Done() override;

  base::ComputePool* const pool_;
  std::deque<Piece> pieces_;  // the first one is in the pool
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_IO_QUEUE_H_
