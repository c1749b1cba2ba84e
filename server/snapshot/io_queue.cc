#include "server/snapshot/io_queue.h"

#include <utility>

namespace ballast::snapshot {

void IoQueue::Run(absl::AnyInvocable<void() &&> work,
                  absl::AnyInvocable<void() &&> done) {
  pieces_.push_back({std::move(work), std::move(done)});
  if (pieces_.size() == 1) pool_->Submit(this);
}

void IoQueue::Run(int) { std::move(pieces_.front().work)(); }

void IoQueue::Done() {
  auto done = std::move(pieces_.front().done);
  pieces_.pop_front();
  if (!pieces_.empty()) pool_->Submit(this);
  std::move(done)();
}

}  // namespace ballast::snapshot
