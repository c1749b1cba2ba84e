// Ranks that close a job while others go on: what can never be committed
// without them, whether a worker that died may still be replaced, and how all
// this is told.
//
// Threading: pure functions; slots are the control thread's.
#ifndef SERVER_SESSION_CLOSING_H_
#define SERVER_SESSION_CLOSING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/base/ids.h"
#include "server/session/session.h"
#include "server/session/slot.h"

namespace ballast::session {

// The slots of one node, by local rank, and the rank of the first.
struct SlotsView {
  std::span<const std::unique_ptr<Slot>> slots;
  Rank first_rank;

  Rank RankOf(size_t i) const {
    return Rank(first_rank.value() + static_cast<int>(i));
  }
};

// The earliest close on this node, seen from the open step: `step` is the open
// one if the rank has not handed over all of it, else the next.
std::optional<EarlyClose> FirstClose(const SlotsView& view, uint64_t open_word,
                                     Step open_step);
// The one that makes more steps impossible.
std::optional<EarlyClose> Earlier(const std::optional<EarlyClose>& a,
                                  const std::optional<EarlyClose>& b);

// FailedPrecondition: `step` can never be committed, because of `close`.
absl::Status NeverCommitted(const EarlyClose& close, Step step);

// Every worker that is missing was lost (it did not detach) and owes nothing
// to the open step: a replacement finds all steps done and may close.
bool MayBeClosedByReplacements(const SlotsView& view, uint64_t open_word);

// "rank 3 has closed the job, rank 2 (pid 4711) has not"; empty if all workers
// of this node have.
std::string DescribeClosing(const SlotsView& view, const EarlyClose& close);

}  // namespace ballast::session

#endif  // SERVER_SESSION_CLOSING_H_
