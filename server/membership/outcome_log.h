// Where the coordinator records what became of a step before it tells anyone:
// a recorded commit is final. The log keeps the last outcome.
#ifndef SERVER_MEMBERSHIP_OUTCOME_LOG_H_
#define SERVER_MEMBERSHIP_OUTCOME_LOG_H_

#include <optional>

#include "absl/status/status.h"
#include "proto/peer.pb.h"
#include "server/membership/error_budget.h"

namespace ballast::membership {

class OutcomeLog {
 public:
  virtual ~OutcomeLog() = default;
  // `outcome` carries a commit or an abort, and its generation; `budget` is the
  // error budget after it. An error means that it must not be told to anyone.
  virtual absl::Status Record(const v1::PeerFrame& outcome,
                              const BudgetState& budget) = 0;
  virtual const std::optional<v1::PeerFrame>& last() const = 0;
};

// Lives as long as its daemon.
class MemoryOutcomeLog final : public OutcomeLog {
 public:
  absl::Status Record(const v1::PeerFrame& outcome,
                      const BudgetState&) override {
    last_ = outcome;
    return absl::OkStatus();
  }
  const std::optional<v1::PeerFrame>& last() const override { return last_; }

 private:
  std::optional<v1::PeerFrame> last_;
};

}  // namespace ballast::membership

#endif  // SERVER_MEMBERSHIP_OUTCOME_LOG_H_
