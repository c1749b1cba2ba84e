#include "server/session/closing.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast::session {

std::optional<EarlyClose> FirstClose(const SlotsView& view, uint64_t open_word,
                                     Step open_step) {
  std::optional<EarlyClose> first;
  for (size_t i = 0; i < view.slots.size(); ++i) {
    const Slot& slot = *view.slots[i];
    if (slot.state() != SlotState::kClosed) continue;
    const bool is_complete = slot.IsComplete(open_word);
    first = Earlier(
        first,
        EarlyClose{view.RankOf(i), is_complete ? open_step.next() : open_step});
  }
  return first;
}

std::optional<EarlyClose> Earlier(const std::optional<EarlyClose>& a,
                                  const std::optional<EarlyClose>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return b->step < a->step ? b : a;
}

absl::Status NeverCommitted(const EarlyClose& close, Step step) {
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", close.rank.value(), " has closed the job; step ", step.value(),
      " can never be committed; all ranks must take the same number of steps "
      "before they close"));
}

bool MayBeClosedByReplacements(const SlotsView& view, uint64_t open_word) {
  return std::all_of(view.slots.begin(), view.slots.end(),
                     [&](const auto& slot) {
                       return slot->state() != SlotState::kMissing ||
                              (slot->was_lost() && !slot->HasInput(open_word));
                     });
}

std::string DescribeClosing(const SlotsView& view, const EarlyClose& close) {
  constexpr size_t kMaxNamed = 8;
  std::vector<std::string> open;
  size_t num_open = 0;
  for (size_t i = 0; i < view.slots.size(); ++i) {
    const Slot& slot = *view.slots[i];
    if (slot.state() == SlotState::kClosed || ++num_open > kMaxNamed) continue;
    open.push_back(absl::StrCat("rank ", view.RankOf(i).value(), " (pid ",
                                slot.identity().pid, ")"));
  }
  if (num_open == 0) return "";
  return absl::StrCat("rank ", close.rank.value(), " has closed the job, ",
                      absl::StrJoin(open, ", "),
                      num_open > kMaxNamed ? " and more" : "",
                      num_open == 1 ? " has not" : " have not");
}

}  // namespace ballast::session
