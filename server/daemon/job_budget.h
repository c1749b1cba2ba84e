// A job's error budget between those who know of it: membership counts by the
// place of a tensor among the metered ones, the plan and snapshots by tensor.
//
// Threading: control thread only.
#ifndef SERVER_DAEMON_JOB_BUDGET_H_
#define SERVER_DAEMON_JOB_BUDGET_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/peer.pb.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/membership/error_budget.h"
#include "server/membership/membership.h"
#include "server/snapshot/job_snapshots.h"
#include "server/snapshot/loader.h"

namespace ballast::daemon {

// Which tensors' errors votes carry, and the budget's codecs as the policy has
// them.
void SetMetered(const layout::ExchangePlan& plan, membership::Parts* parts);

// From a stored state: codecs on every node, the count of calm steps where it
// is decided. What the policy has not any more, or has wider itself, is left as
// the policy says.
void RestoreBudget(std::span<const snapshot::LoadedState::Budget> stored,
                   layout::ExchangePlan* plan,
                   membership::Membership* membership);

// The budget after the outcome of a step whose codecs `plan` has; counts only
// node 0 knows. Nothing without a budget.
membership::BudgetState BudgetAfter(const v1::PeerFrame& outcome,
                                    const layout::ExchangePlan& plan);
// Of an earlier life.
void RestoreBudget(const membership::BudgetState& kept,
                   layout::ExchangePlan* plan,
                   membership::Membership* membership);
// The codecs before the commit, which is carried out once more.
void RevertChanges(const v1::Commit& commit, layout::ExchangePlan* plan);

// What differs from the policy, or counts.
std::vector<snapshot::BudgetInfo> Budget(
    const layout::ExchangePlan& plan, const membership::Membership& membership);

// A line for each codec that the commit changes.
void LogCodecChanges(std::string_view job, const layout::Layout& layout,
                     const layout::ExchangePlan& plan, const v1::Commit& commit,
                     const std::function<void(const std::string&)>& log);

}  // namespace ballast::daemon

#endif  // SERVER_DAEMON_JOB_BUDGET_H_
