#include "server/daemon/job_budget.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/ids.h"
#include "server/layout/metering.h"
#include "server/membership/error_budget.h"

namespace ballast::daemon {
namespace {

// A peer's numbers.
bool IsPath(int path) { return static_cast<size_t>(path) < layout::kNumPaths; }

}  // namespace

void SetMetered(const layout::ExchangePlan& plan, membership::Parts* parts) {
  parts->budget.max_relative_error = plan.policy().max_relative_error;
  if (plan.policy().metered_one_in == 0) return;
  for (const layout::Path path : layout::kPaths) {
    const auto p = static_cast<size_t>(path);
    for (const TensorId tensor : plan.metered(path)) {
      parts->metered[p].push_back(tensor);
      parts->budget.codecs[p].push_back(
          plan.policy_codecs(tensor).on(path).codec);
    }
  }
}

void RestoreBudget(std::span<const snapshot::LoadedState::Budget> stored,
                   layout::ExchangePlan* plan,
                   membership::Membership* membership) {
  if (plan->policy().max_relative_error <= 0) return;
  membership::BudgetState state = membership->budget();
  for (const snapshot::LoadedState::Budget& entry : stored) {
    const int index = plan->MeteredIndex(entry.path, entry.tensor);
    const layout::CodecChange change{entry.path, entry.tensor, entry.codec};
    if (index < 0 || !plan->Apply(change).ok()) continue;
    std::vector<membership::TensorBudget>& tensors =
        state[static_cast<size_t>(entry.path)];
    if (static_cast<size_t>(index) >= tensors.size()) continue;
    tensors[index] = {.codec = entry.codec, .calm = entry.calm};
  }
  membership->RestoreBudget(std::move(state));
}

membership::BudgetState BudgetAfter(const v1::PeerFrame& outcome,
                                    const layout::ExchangePlan& plan) {
  membership::BudgetState state;
  if (plan.policy().max_relative_error <= 0) return state;
  for (const layout::Path path : layout::kPaths) {
    for (const TensorId tensor : plan.metered(path)) {
      state[static_cast<size_t>(path)].push_back(
          {.codec = plan.codecs(tensor).on(path).codec, .calm = 0});
    }
  }
  for (const v1::CodecChange& change : outcome.commit().codec_changes()) {
    if (!IsPath(change.path())) continue;
    const auto path = static_cast<size_t>(change.path());
    const std::span<const TensorId> metered =
        plan.metered(layout::kPaths[path]);
    const auto it = std::ranges::find(metered, TensorId(change.tensor()));
    if (it == metered.end()) continue;
    state[path][it - metered.begin()].codec =
        static_cast<layout::CodecId>(change.to());
  }
  return state;
}

void RestoreBudget(const membership::BudgetState& kept,
                   layout::ExchangePlan* plan,
                   membership::Membership* membership) {
  if (plan->policy().max_relative_error <= 0) return;
  membership::BudgetState state = membership->budget();
  for (const layout::Path path : layout::kPaths) {
    const auto p = static_cast<size_t>(path);
    const std::span<const TensorId> metered = plan->metered(path);
    for (size_t i = 0; i < kept[p].size() && i < metered.size(); ++i) {
      if (!plan->Apply({path, metered[i], kept[p][i].codec}).ok()) continue;
      if (i < state[p].size()) state[p][i] = kept[p][i];
    }
  }
  membership->RestoreBudget(std::move(state));
}

void RevertChanges(const v1::Commit& commit, layout::ExchangePlan* plan) {
  for (const v1::CodecChange& change : commit.codec_changes()) {
    // What does not fit is refused when the commit is carried out.
    if (!IsPath(change.path())) continue;
    plan->Apply({static_cast<layout::Path>(change.path()),
                 TensorId(change.tensor()),
                 static_cast<layout::CodecId>(change.from())})
        .IgnoreError();
  }
}

std::vector<snapshot::BudgetInfo> Budget(
    const layout::ExchangePlan& plan,
    const membership::Membership& membership) {
  std::vector<snapshot::BudgetInfo> budget;
  const membership::BudgetState state = membership.budget();
  for (const layout::Path path : layout::kPaths) {
    const auto& tensors = state[static_cast<size_t>(path)];
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorId tensor = plan.metered(path)[i];
      if (tensors[i].calm == 0 &&
          tensors[i].codec == plan.policy_codecs(tensor).on(path).codec) {
        continue;
      }
      budget.push_back({.tensor = tensor.value(),
                        .path = std::string(layout::Name(path)),
                        .codec = std::string(layout::Name(tensors[i].codec)),
                        .calm = tensors[i].calm});
    }
  }
  return budget;
}

// A peer's numbers: what the plan would refuse is not named.
void LogCodecChanges(std::string_view job, const layout::Layout& layout,
                     const layout::ExchangePlan& plan, const v1::Commit& commit,
                     const std::function<void(const std::string&)>& log) {
  if (log == nullptr) return;
  for (const v1::CodecChange& change : commit.codec_changes()) {
    const auto num_tensors = static_cast<int>(layout.tensors().size());
    if (change.tensor() < 0 || change.tensor() >= num_tensors) continue;
    if (!IsPath(change.path())) continue;
    log(absl::StrCat(
        "codec changed job=", std::string(job), " step=", commit.step(),
        " path=",
        std::string(layout::Name(static_cast<layout::Path>(change.path()))),
        " tensor=", layout.tensor(TensorId(change.tensor())).name, " from=",
        std::string(layout::Name(static_cast<layout::CodecId>(change.from()))),
        " to=",
        std::string(layout::Name(static_cast<layout::CodecId>(change.to()))),
        " relative_error=", change.relative_error(),
        " max_relative_error=", plan.policy().max_relative_error));
  }
}

}  // namespace ballast::daemon
