#include "server/daemon/resumption.h"

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"

namespace ballast::daemon {
namespace {

absl::Status Contradiction(const std::optional<v1::PeerFrame>& outcome,
                           Step state, Step finished) {
  std::string recorded = "no outcome";
  if (outcome.has_value()) {
    recorded = outcome->has_commit()
                   ? absl::StrCat("a commit of step ", outcome->commit().step())
                   : absl::StrCat("an abort of step ", outcome->abort().step());
  }
  return absl::DataLossError(absl::StrCat(
      "what was recorded of the job contradicts itself: ", recorded,
      ", the state of step ", state.value(), ", weights of step ",
      finished.value()));
}

bool IsGeneration(int64_t value) {
  return value >= 1 && value <= proto::kMaxGeneration;
}

}  // namespace

absl::StatusOr<Resumption> Resume(const std::optional<v1::PeerFrame>& outcome,
                                  Step state, Step finished) {
  Resumption result;
  result.generation = Generation(1);
  result.open_step = state.next();
  const bool is_finished = finished == state;
  const bool is_step = state.value() >= 0 && state.value() < proto::kMaxStep;
  if (!outcome.has_value()) {
    if (is_step && is_finished) return result;
    return Contradiction(outcome, state, finished);
  }
  result.generation =
      Generation(outcome->has_abort() ? outcome->abort().next_generation()
                                      : outcome->generation());
  if (!is_step || !IsGeneration(result.generation.value())) {
    return Contradiction(outcome, state, finished);
  }
  if (outcome->has_abort()) {
    if (is_finished && outcome->abort().step() == result.open_step.value()) {
      result.abort = outcome->abort();
      return result;
    }
  } else if (outcome->has_commit()) {
    const int64_t step = outcome->commit().step();
    if (is_finished &&
        (step == state.value() || step == result.open_step.value())) {
      return result;
    }
    if (step == state.value() && finished.next() == state) {
      result.commit = outcome->commit();
      return result;
    }
  }
  return Contradiction(outcome, state, finished);
}

}  // namespace ballast::daemon
